"""A client's training: what is random in it, and what it may look at."""

import dataclasses

import torch

from fedqssl.federated import client
from fedqssl.federated.client import local_update
from fedqssl.lowbit import LowBitSGD, LowBitWeight, load_bytes
from fedqssl.runs.round import first_checkpoint
from tiny_run import tiny_context


def test_rounding_and_views_are_drawn_anew_for_every_client_and_round(monkeypatch):
    """Equal errors of all clients would not average out."""
    context = tiny_context(bits=4, local_epochs=1)
    payload = first_checkpoint(context).payloads["client-00"]
    names, rounds = list(context.bits), (0, 1)
    seeds, views = [], []

    class Noted(LowBitSGD):
        def __init__(self, *given, seed, **settings):
            seeds.append(seed)
            super().__init__(*given, seed=seed, **settings)

    def steps(model, opt, images, task, draws, steps, labels):
        views.append(draws.initial_seed())
        return [0.0]

    monkeypatch.setattr(client, "LowBitSGD", Noted)
    monkeypatch.setattr(client, "train_steps", steps)
    for _ in range(2):
        for number in rounds:
            for name in names:
                local_update(payload, context.job(number, 0.1), context.client(name))
    count = len(names) * len(rounds)
    for drawn in (seeds, views):
        assert drawn[:count] == drawn[count:] and len({*drawn}) == count
    assert not {*seeds} & {*views}


def test_the_same_images_under_two_names_give_two_models():
    """With the same batches and views, it is the rounding that differs."""
    context = tiny_context(bits=4, images=80)
    job, data = context.job(0, 0.1), context.client("client-00")
    payload = first_checkpoint(context).payloads["client-00"]
    with_same_views = dataclasses.replace(data, name="client-01")
    real = client.generator
    client.generator = lambda seed, *purpose: torch.Generator().manual_seed(0)
    try:
        one, again, other = (local_update(payload, job, mine) for mine in (data, data, with_same_views))
    finally:
        client.generator = real
    assert one[0] == again[0] != other[0]


def test_the_job_is_followed():
    """Learning rate, epochs, rule and rounding are those of the job."""
    context = tiny_context(bits=4, images=80)
    job, data = context.job(0, 0.1), context.client("client-00")
    payload = first_checkpoint(context).payloads["client-00"]
    plain, metrics = local_update(payload, job, data)
    assert metrics.samples == len(data.images) and len(metrics.losses) == job.epochs
    for change in ({"lr": 0.2}, {"epochs": job.epochs + 1}, {"rule": "latent"}, {"rounding": "nearest"}):
        assert local_update(payload, dataclasses.replace(job, **change), data)[0] != plain, change


def test_steps_are_those_of_epochs_and_of_any_length():
    """As many steps as two epochs have give the same bytes; a client with fewer images than a batch takes as many."""
    context = tiny_context(bits=4, images=160)
    job, data = context.job(0, 0.1), context.client("client-00")
    payload = first_checkpoint(context).payloads["client-00"]
    per_epoch = job.task.steps(len(data.images))
    assert per_epoch > 1
    epochs = local_update(payload, dataclasses.replace(job, epochs=2), data)
    steps = local_update(payload, dataclasses.replace(job, epochs=None, steps=2 * per_epoch), data)
    assert steps[0] == epochs[0] and steps[1].losses == epochs[1].losses
    more = local_update(payload, dataclasses.replace(job, epochs=None, steps=2 * per_epoch + 1), data)
    assert more[0] != epochs[0] and len(more[1].losses) == 3
    few = dataclasses.replace(data, images=data.images[:5])
    assert len(local_update(payload, dataclasses.replace(job, epochs=None, steps=4), few)[1].losses) == 4


def test_a_run_with_local_steps_asks_for_them():
    job = tiny_context(local_steps=7).job(0, 0.1)
    assert (job.epochs, job.steps) == (None, 7)


def test_steps_below_half_a_cell_reach_the_server():
    """The rule ``residual`` knows where in its cell a weight is; what is sent must say so on average."""
    context = tiny_context(bits=4, images=80, **{"lowbit.rule": "residual", "lowbit.gradient_centres": "mean"})
    payload = first_checkpoint(context).payloads["client-00"]
    sent, _ = local_update(payload, context.job(0, 1e-3), context.client("client-00"))
    before, after = (
        {name: w.unpacked() for name, w in weights(context.task.converted(4), data).items()} for data in (payload, sent)
    )
    changed = {name: float((before[name] != after[name]).double().mean()) for name in before}
    assert all(0 < share < 0.5 for share in changed.values()), changed


def weights(model, payload):
    load_bytes(model, payload)
    return {name: m for name, m in model.named_modules() if isinstance(m, LowBitWeight)}
