"""Training against a target network: BYOL's steps by hand, where the target begins, and who needs none."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from fedqssl.federated import task as module
from fedqssl.federated.client import local_update
from fedqssl.federated.job import Job, JobError
from fedqssl.federated.randomness import generator
from fedqssl.federated.server import dequantize
from fedqssl.federated.task import Task, batches, train_steps
from fedqssl.lowbit import LowBitOptions, LowBitSGD, to_bytes
from fedqssl.runs.round import first_checkpoint
from tiny_run import tiny_context

TASK = Task("small_cnn", 4, 3, "byol", 0.5, 8, seed=0, options=LowBitOptions(), momentum=0.9)


def images(count: int = 20) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_steps_by_hand():
    """Full precision, five steps over three epochs: plain torch with a second network."""
    model, reference = TASK.converted(32), TASK.converted(32)
    found = train_steps(model, LowBitSGD(model, 0.3), images(), TASK, generator(0, "x"), 5)
    target, draws, losses = copy.deepcopy(reference).train(), generator(0, "x"), []
    reference.train()
    for epoch in range(3):
        for index in batches(20, 8, draws)[: 5 - 2 * epoch]:
            views = TASK.two_views(images()[index], draws)
            p, t = reference(views)[:, 128:], target(views)[:, :128].detach().roll(8, 0)
            loss = (F.normalize(p, dim=1) - F.normalize(t, dim=1)).square().sum(1).mean()
            for parameter, g in zip(
                reference.parameters(), torch.autograd.grad(loss, list(reference.parameters())), strict=True
            ):
                parameter.data -= 0.3 * g
            for mine, theirs in zip(target.parameters(), reference.parameters(), strict=True):
                mine.data = 0.9 * mine.data + 0.1 * theirs.data
            losses.append(float(loss.detach()))
    assert found == pytest.approx([losses[0], sum(losses[1:3]) / 2, sum(losses[3:]) / 2], abs=1e-4)
    for mine, want in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mine, want, atol=1e-3)


def test_the_settings_reach_clients_here_and_elsewhere():
    """The same bytes again and by way of the wire; other bytes with another momentum and in another round."""
    context = tiny_context(objective="byol", bits=4, images=80, local_steps=3, **{"ssl.momentum": 0.7})
    payload, data = first_checkpoint(context).payloads["client-00"], context.client("client-00")
    job = context.job(0, 0.3)
    assert job.task.momentum == 0.7 and job.task.has_target
    sent = Job.from_json(job.to_json())
    others = [
        dataclasses.replace(job, task=dataclasses.replace(job.task, momentum=0.0)),
        dataclasses.replace(job, round_number=1),
    ]
    made = [local_update(payload, each, data)[0] for each in (job, sent, *others)]
    assert made[0] == made[1] and len(set(made)) == 3
    for momentum in (-0.1, 1.0):
        with pytest.raises(JobError, match="out of range"):
            Job.from_json(dataclasses.replace(job, task=dataclasses.replace(TASK, momentum=momentum)).to_json())


def test_a_server_needs_a_target_only_to_train(monkeypatch):
    """De-quantization in full precision has one; a pass without steps reads the network's own projections."""
    payload = to_bytes(TASK.converted(4))
    trained = {
        m: dequantize(payload, 4, images(), dataclasses.replace(TASK, momentum=m), 0, 4, 0.3) for m in (0.0, 0.9)
    }
    assert trained[0.0][1] != trained[0.9][1]
    monkeypatch.setattr(module, "TargetNetwork", None)
    assert 0 < dequantize(payload, 4, images(), TASK, 0, steps=0, lr=0.1)[1] < 4
    model, own = TASK.converted(32), dataclasses.replace(TASK, objective="simsiam")
    train_steps(
        model, LowBitSGD(model, 0.1), images(), TASK, generator(0), 1, loss_of=lambda z, index: z.square().mean()
    )
    train_steps(own.converted(32), None, images(), own, generator(0), 1)
    simsiam = own.converted(4)
    train_steps(simsiam, LowBitSGD(simsiam, 0.1), images(), own, generator(0), 1)
    assert not own.has_target and not dataclasses.replace(TASK, objective="supervised").has_target
