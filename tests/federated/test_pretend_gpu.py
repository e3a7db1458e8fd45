"""A round and its parts on a GPU that is not there: nothing of the CPU is mixed in, and all bytes are the CPU's.

``IN_EVERY_STEP`` and ``ONCE`` are all that may cross between host and GPU while a model trains. A line more here is a decision:
each ``wait`` in a step makes the host stand still until the GPU has caught up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedqssl.evaluation.classifier import logistic_accuracy
from fedqssl.federated.client import local_update
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.server.dequantize import dequantize
from fedqssl.federated.server.fine_tune import settle
from fedqssl.federated.server.requantize import requantize
from fedqssl.federated.server.usable import check_usable
from fedqssl.federated.state import read_payload, write_state
from fedqssl.federated.task import Task, train_steps
from fedqssl.lowbit import LowBitOptions, LowBitSGD, load_bytes, to_bytes
from fedqssl.lowbit.chunks import chunk_images
from fedqssl.quant import kernels
from fedqssl.quant.kernels import gpu
from fedqssl.runs import evaluate
from pretend_gpu import CUDA, OnGpu, pretend_gpu
from tiny_run import tiny_context

IN_EVERY_STEP = {
    ("up", "ssl.views._views"): "random numbers of the views",
    ("up", "quant.rounding.uniform_like"): "random numbers of stochastic rounding",
    ("up", "lowbit.layers._track"): "the range of pooled features, two numbers",
    ("down", "lowbit.layers._track"): "the same",
    ("up", "lowbit.weight.store"): "the scale of a layer without batch norm, which grows",
    ("wait", "quant.compand.grown_scale"): "the same",
    ("wait", "quant.kernels.reference.key_histogram"): "the number of keys, which bincount asks for; not in Triton",
    ("wait", "quant.quantile.quantile_quantize"): "a gradient with fewer entries than centres: its own entries, sorted",
    ("wait", "lowbit.optim._non_finite"): "whether all gradients are finite",
}
ONCE = {
    ("up", "federated.task.batches"): "the order of an epoch",
    ("wait", "federated.task.train_steps"): "the losses of an epoch",
    ("up", "ssl.views._colour_constants"): "constants",
    ("wait", "lowbit.layers._check"): "whether the first batch of a model is in [0, 1]",
    ("wait", "lowbit.layers.extent"): "the range that a model came with",
    ("wait", "lowbit.weight.m"): "scales that a model came with",
    ("up", "quant.kernels.tensorcores.trusted"): "the probe of TF32, for every shape",
    ("down", "quant.kernels.tensorcores.trusted"): "the same",
}


@pytest.fixture(autouse=True)
def _plain_torch():
    with kernels.use("torch"):
        yield


def _task(objective: str = "simclr") -> Task:
    return Task("small_cnn", 4, 3, objective, 0.5, 4, 0, LowBitOptions())


def _images(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _trained(device: torch.device, bits: int, objective: str, steps: int) -> tuple[list[float], bytes]:
    task = _task(objective)
    model = task.converted(bits).to(device)
    opt = LowBitSGD(model, 0.3, seed=1)
    images, draws = _images(4 * steps).to(device), torch.Generator().manual_seed(3)
    losses = train_steps(model, opt, images, task, draws, steps)
    return losses, to_bytes(model)


@pytest.mark.parametrize(
    "objective, bits",
    [
        ("simclr", 32),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("simsiam", 12), ("byol", 4), ("dcl", 1), ("vicreg", 16))),
    ],
)
def test_training_on_the_gpu_gives_the_bytes_of_the_cpu(monkeypatch, objective, bits):
    want = _trained(torch.device("cpu"), bits, objective, 2)
    with pretend_gpu(monkeypatch):
        assert _trained(CUDA, bits, objective, 2) == want


def test_what_crosses_in_a_step(monkeypatch):
    want = _trained(torch.device("cpu"), 4, "simclr", 2)
    with pretend_gpu(monkeypatch) as noted:
        counts = []
        _trained(CUDA, 4, "simclr", 1)  # what happens once in a process
        for steps in (1, 2):
            noted.clear()
            found = _trained(CUDA, 4, "simclr", steps)
            counts.append(dict(noted))
    assert found == want
    ours = [
        {key: n for key, n in found.items() if key[1] not in ("test", "lowbit.container.to_bytes")} for found in counts
    ]
    grows = {key for key, n in ours[1].items() if n > ours[0].get(key, 0)}
    assert grows <= IN_EVERY_STEP.keys(), grows - IN_EVERY_STEP.keys()
    assert ours[1].keys() <= (IN_EVERY_STEP | ONCE).keys(), ours[1].keys() - (IN_EVERY_STEP | ONCE).keys()
    assert ours[1][("wait", "federated.task.train_steps")] == 1  # of two steps
    asked = ("wait", "lowbit.optim._non_finite")
    assert ours[1][asked] - ours[0][asked] == 1


def test_a_step_with_tritons_kernels(monkeypatch):
    """In Triton's interpreter: the bytes of plain torch on the CPU, and nobody waits for a histogram."""
    found, why = gpu.find()
    if found is None or not gpu.interpreting():
        pytest.skip(why)
    want = _trained(torch.device("cpu"), 4, "simclr", 1)
    launch, names = found._launch, set()

    def plain(x: object) -> object:
        return x.inner if isinstance(x, OnGpu) else x

    def unwrapped(kernel: Any, like: torch.Tensor, grid: tuple[int, ...], *arguments: object, **constants: object):
        assert all(isinstance(x, OnGpu) for x in (like, *arguments) if isinstance(x, torch.Tensor))
        names.add(kernel.fn.__name__)
        launch(kernel, plain(like), grid, *map(plain, arguments), **constants)

    monkeypatch.setattr(found, "_launch", unwrapped)
    monkeypatch.setattr(gpu, "probe", lambda device: (found, why))
    with kernels.use("auto"), pretend_gpu(monkeypatch) as noted:
        assert _trained(CUDA, 4, "simclr", 1) == want
    assert not any(what == "wait" and "kernels" in where for what, where in noted)
    assert names >= {"block_sums_kernel", "norm_act_kernel", "histogram_kernel", "step_target_kernel"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_that_is_not_finite_is_skipped(monkeypatch, device):
    """On a GPU that is found out in the optimiser's step, at the cost of one wait."""
    with pretend_gpu(monkeypatch) as noted:
        task = _task()
        model = task.converted(4).to(device)
        before, opt = to_bytes(model), LowBitSGD(model, 0.3)
        views = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)).to(device)
        torch.autograd.backward(model.eval()(views).sum() * float("nan"))
        noted.clear()
        opt.step()
        assert opt.skipped == 1 and to_bytes(model) == before
        assert all(w.finite is True for w in opt.weights.values())
        if device == "cuda":
            assert noted["wait", "lowbit.optim._non_finite"] == 1


def test_a_round_and_its_evaluation(monkeypatch):
    """Client, de-quantization, aggregation, re-quantization, probe, kNN, export: on the GPU as on the CPU."""
    found = {"cpu": _round("cpu")}
    with pretend_gpu(monkeypatch):
        found["cuda"] = _round("cuda")
    assert found["cuda"].keys() == found["cpu"].keys()
    for what, value in found["cpu"].items():
        assert found["cuda"][what] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), what


def _round(device: str) -> dict[str, object]:
    changes = {"bits": "2,4", "clients": 2, "images": 64, "batch_size": 8, "local_steps": 2}
    changes |= {"evaluation.probe_images": 40, "evaluation.probe": "fixed", "views.size": 16, "features": "stages"}
    context = tiny_context(device=device, **changes)
    context = replace(context, test=context.test.subset(torch.arange(40)))
    task, buffer = context.task, context.buffer()[:16]
    assert (device == "cuda") == isinstance(buffer, OnGpu)
    job = context.job(0, 0.3)
    out: dict[str, object] = {}
    states = {}
    for name, bits in context.bits.items():
        data = context.client(name)
        assert (device == "cuda") == isinstance(data.images, OnGpu)
        payload, metrics = local_update(to_bytes(task.converted(bits)), job, data)
        out[f"upload {name}"], out[f"losses {name}"] = payload, metrics.losses
        states[name], out[f"loss {name}"] = dequantize(payload, bits, buffer, task, 0, 1, 0.3)
        assert not any(isinstance(x, OnGpu) for x in states[name].values())  # states travel, so they are the host's
    aggregate = settle(average(states, dict.fromkeys(states, 0.5)), buffer, task, 2)
    check_usable(aggregate, aggregate, buffer, task)
    out["handed out"] = requantize(aggregate, 4, buffer, task, 0, 1, 0.3)
    out["found ranges"] = requantize(
        {n: x for n, x in aggregate.items() if ".low" not in n}, 4, buffer, task, 0, 0, 0.3
    )
    full = task.converted(32).to(context.device)
    write_state(full, aggregate)
    load_bytes(full, to_bytes(full))  # export, and back to where the model is
    out["knn"] = evaluate.knn_monitor(context, full)
    out |= {f"collapse {key}": float(x) for key, x in evaluate.collapse_monitor(context, full).to_json().items()}
    out["global"] = evaluate.global_accuracy(context, 4, out["handed out"])
    out["local"] = evaluate.client_accuracy(context, "client-01", out["handed out"])
    return out


def test_a_model_is_filled_and_packed_where_it_is(monkeypatch):
    payload = to_bytes(_task().converted(4))
    with pretend_gpu(monkeypatch):
        model = _task().converted(4).to(CUDA)
        load_bytes(model, payload)
        held = [*model.parameters(), *model.buffers()]
        assert all(isinstance(x, OnGpu) for x in held) and to_bytes(model) == payload


def test_aggregation_where_the_states_are(monkeypatch):
    states = {
        name: read_payload(to_bytes(_task().converted(bits)), bits, _task()) for name, bits in (("a", 4), ("b", 8))
    }
    want = average(states, {"a": 0.3, "b": 0.7})
    with pretend_gpu(monkeypatch) as noted:
        moved = {name: {key: x.to(CUDA) for key, x in state.items()} for name, state in states.items()}
        noted.clear()
        got = average(moved, {"a": 0.3, "b": 0.7})
        assert not noted and all(isinstance(x, OnGpu) for x in got.values())
        assert all(torch.equal(got[key].cpu(), x) for key, x in want.items())


def test_convolutions_of_a_gpu_take_more_images_at_a_time():
    shape = torch.Size((512, 64, 32, 32))  # of the paper's first layers
    assert [chunk_images(shape, d) for d in (torch.device("cpu"), CUDA)] == [16, 128]
    assert chunk_images(torch.Size((512, 512, 4, 4)), CUDA) == 512


def test_a_tensor_of_the_cpu_is_noticed(monkeypatch):
    with pretend_gpu(monkeypatch), pytest.raises(AssertionError, match="tensors of the CPU"):
        torch.ones(3, device=CUDA) + torch.ones(3)


@pytest.mark.slow
def test_the_probe_that_chooses_its_decay(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 3
    x = torch.randn(40, 6, generator=draws) + y[:, None]
    want = logistic_accuracy(x, y, x, y, 3, levels=(2, 4))
    with pretend_gpu(monkeypatch):
        assert logistic_accuracy(x.to(CUDA), y, x.to(CUDA), y, 3, levels=(2, 4)) == want > 0.5
