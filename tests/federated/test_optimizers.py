"""The server's optimisers and its average: recomputed by hand, around any algorithm, and resumed bit for bit."""

from types import SimpleNamespace

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.algorithms.base import Round
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.adam import with_adam
from fedqssl.federated.optimizers.ema import with_ema
from fedqssl.federated.optimizers.fedexp import with_fedexp
from fedqssl.federated.optimizers.momentum import with_momentum
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.server_state import equal, part_of, state_from_bytes, state_to_bytes
from fedqssl.federated.state import read_payload
from fedqssl.lowbit import ContainerError
from fedqssl.runs import RunFolder, resume, start
from fedqssl.runs.round import first_checkpoint, play_round
from tiny_run import (
    figures,
    known_rounds,
    known_run,
    model_bytes,
    played,
    rounds_of,
    silent,
    stopped_after,
    tiny,
    tiny_context,
)

OPTIMIZED = [
    {"server.optimizer": "momentum", "server.momentum": 0.5},
    {"server.optimizer": "adam"},
    {"server.optimizer": "fedexp", "server.ema": 0.5},
    {"server.ema": 0.5},
    {"server.optimizer": "momentum", "server.ema": 0.9},
    {"algorithm": "fed_refine", "server.optimizer": "momentum", "server.steps": 3, "local_steps": 2},
    {"algorithm": "fed_distill", "server.optimizer": "fedexp", "server.steps": 3, "server.ema": 0.5},
]
TRAIN_THE_AGGREGATE = ("fed_refine", "fed_distill", "fed_qssl_plus")


def stepped(wrap, aggregates, start=0.0):
    """The weight after each round whose aggregate is ``w + step``, and the statistic; and the last state."""
    state, w, found = {}, start, []
    for step in aggregates:
        before = {"a.weight": torch.tensor([w]), "bn.running_mean": torch.tensor([0.0])}
        aggregate = {"a.weight": torch.tensor([w + step]), "bn.running_mean": torch.tensor([7.0])}
        server = wrap(lambda state, arrived, operators, w=aggregate: (state, Round(w, lambda w: {})))
        state, after = server(state, None, SimpleNamespace(before=lambda before=before: before))
        assert float(after.aggregate["bn.running_mean"]) == 7.0  # measured, not optimised
        w = float(after.aggregate["a.weight"])
        found.append((w, after))
    return found, state


def test_momentum_by_hand():
    """m1 = 1, w1 = 0 + 0.5; m2 = 0.9 + 2 = 2.9, w2 = 0.5 + 1.45; m3 = 2.61 - 1 = 1.61, w3 = 1.95 + 0.805."""
    found, state = stepped(lambda server: with_momentum(server, beta=0.9, lr=0.5), [1.0, 2.0, -1.0])
    assert [w for w, _ in found] == pytest.approx([0.5, 1.95, 2.755], rel=1e-6)
    assert float(state["momentum/m/a.weight"]) == pytest.approx(1.61) and len(state) == 1


def test_adam_by_hand():
    """beta1 = 0.5, beta2 = 0.75, tau = 0.1, lr = 0.2: m1 = 0.5, v1 = 0.0075 + 0.25; m2 = 1.25, v2 = 0.193125 + 1."""
    found, state = stepped(lambda server: with_adam(server, 0.5, 0.2, beta2=0.75, tau=0.1), [1.0, 2.0])
    first = 0.2 * 0.5 / (0.2575**0.5 + 0.1)
    second = first + 0.2 * 1.25 / (1.193125**0.5 + 0.1)
    assert [w for w, _ in found] == pytest.approx([first, second], rel=1e-5)
    assert sorted(state) == ["adam/m/a.weight", "adam/v/a.weight"]


def averaged(before, parts, weights):
    """A server part that averages these states."""
    w = {n: sum(weights[c] * x[n] for c, x in parts.items()) for n in before}
    return lambda state, arrived, operators: (state, Round(w, lambda w: {}, weights=weights, parts=parts))


@pytest.mark.parametrize(
    ("steps", "shares", "largest", "eta"),
    [
        # |d_1|^2 = 16, |d_2|^2 = 4; d = (1, 1.5), |d|^2 = 3.25; (0.25 * 16 + 0.75 * 4) / (2 * 3.251)
        ([(4.0, 0.0), (0.0, 2.0)], [0.25, 0.75], 9.0, 7 / (2 * 3.251)),
        # d = (1, 0): (0.5 * 25 + 0.5 * 17) / (2 * 1.001) = 10.5
        ([(3.0, 4.0), (-1.0, -4.0)], [0.5, 0.5], 99.0, 21 / (2 * 1.001)),
        ([(3.0, 4.0), (-1.0, -4.0)], [0.5, 0.5], 2.0, 2.0),
        # the same direction: 1/2, and so 1
        ([(1.0, 1.0), (1.0, 1.0)], [0.5, 0.5], 9.0, 1.0),
        # nothing moves
        ([(0.0, 0.0), (0.0, 0.0)], [0.5, 0.5], 9.0, 1.0),
    ],
)
def test_fedexp_by_hand(steps, shares, largest, eta):
    before = {"a.weight": torch.tensor([1.0, -2.0]), "bn.running_mean": torch.tensor([0.0])}
    parts = {
        str(i): {"a.weight": before["a.weight"] + torch.tensor(d), "bn.running_mean": torch.tensor([100.0])}
        for i, d in enumerate(steps)
    }
    weights = {str(i): share for i, share in enumerate(shares)}
    server = with_fedexp(averaged(before, parts, weights), largest)
    state, after = server({}, None, SimpleNamespace(before=lambda: before))
    assert state == {} and after.step_size == pytest.approx(eta, rel=1e-9)
    d = sum(share * torch.tensor(step) for share, step in zip(shares, steps, strict=True))
    assert torch.allclose(after.aggregate["a.weight"], before["a.weight"] + eta * d, rtol=1e-6)
    assert float(after.aggregate["bn.running_mean"]) == 100.0  # measured, not optimised; nor does it count in eta


@pytest.mark.parametrize("algorithm", ["fed_qssl", "fed_refine", "fed_simclr", "fed_paq"])
def test_fedexp_extends_the_step_of_an_algorithm_that_averages(algorithm):
    """From the model before the round through the algorithm's own average; Fed-Refine trains only after that."""
    plain = {"server.dequantize_epochs": 0} if algorithm == "fed_refine" else {}
    context, (there, plain_line) = tiny_context(algorithm=algorithm), known_rounds(algorithm=algorithm, **plain)
    far = {"server.optimizer": "fedexp", "server.optimizer_lr": 100}
    after, (line,) = rounds_of(tiny_context(algorithm=algorithm, **plain, **far))
    eta = line["server_step_size"]
    assert 1 < eta < 100
    first, there, w = (read_payload(c.aggregated, 32, context.task) for c in (first_checkpoint(context), there, after))
    for name in w:
        if "running" not in name:
            assert torch.allclose(w[name], first[name] + eta * (there[name] - first[name]), atol=5e-3), name
    assert plain_line[0]["server_step_size"] is None


def test_fed_qssls_step_is_of_its_dequantized_models():
    seen = {}

    class Spy(ServerOperators):
        def dequantize(self, payloads):
            seen.update(super().dequantize(payloads))
            return seen

    context = tiny_context(**{"server.optimizer": "fedexp", "server.optimizer_lr": 100})
    first = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    _, (line,) = rounds_of(context, operators=Spy)
    names = [n for n in first if "running" not in n]
    steps = {c: torch.cat([(w[n] - first[n]).double().flatten() for n in names]) for c, (w, _) in seen.items()}
    mean = sum(line["weights"][c] * d for c, d in steps.items())
    spread = sum(line["weights"][c] * float(d @ d) for c, d in steps.items())
    assert line["server_step_size"] == pytest.approx(spread / (2 * (float(mean @ mean) + 1e-3)), rel=1e-4)


def test_fedexp_needs_clients():
    for name in ("server_only", "central", "untrained"):
        with pytest.raises(ConfigError, match=f"{name} averages no clients' models"):
            configured_server(ALGORITHMS[name], tiny(algorithm=name, **{"server.optimizer": "fedexp"}))
    server = with_fedexp(lambda state, arrived, operators: (state, Round({}, lambda w: {})), 2.0)
    with pytest.raises(ValueError, match="needs an algorithm that averages"):
        server({}, None, None)


def test_average_by_hand():
    """a1 = 1; w2 = 3, a2 = 0.75 + 0.75; w3 = 2, a3 = 1.125 + 0.5. Training continues from w."""
    found, state = stepped(lambda server: with_ema(server, beta=0.75), [1.0, 2.0, -1.0])
    assert [w for w, _ in found] == [1.0, 3.0, 2.0]
    assert [float(after.served["a.weight"]) for _, after in found] == pytest.approx([1.0, 1.5, 1.625])
    assert float(state["ema/a.weight"]) == pytest.approx(1.625)


def test_momentum_of_nothing_is_the_algorithm():
    plain, _ = known_rounds()
    same, _ = rounds_of(tiny_context(**{"server.optimizer": "momentum", "server.momentum": 0.0}))
    got, want = (read_payload(c.aggregated, 32, tiny_context().task) for c in (same, plain))
    assert all(torch.allclose(got[n], want[n], rtol=2e-3, atol=1e-5) for n in want)  # batch norm travels in 16 bits


@pytest.mark.parametrize(
    "algorithm",
    [n for n, a in ALGORITHMS.items() if a.federates and n not in ("fed_prox", *TRAIN_THE_AGGREGATE)],
)
def test_around_any_algorithm(algorithm):
    """One round of momentum with half a step goes half the way of the algorithm."""
    half = {"server.optimizer": "momentum", "server.optimizer_lr": 0.5}
    context = tiny_context(algorithm=algorithm)
    plain, _ = known_rounds(algorithm=algorithm)
    stepped, _ = rounds_of(tiny_context(algorithm=algorithm, **half))
    first = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    w, there = (read_payload(c.aggregated, 32, context.task) for c in (stepped, plain))
    for name in w:
        if "running" not in name and not name.endswith((".low", ".high")):
            assert torch.allclose(w[name], first[name] + 0.5 * (there[name] - first[name]), atol=2e-3), name


def test_the_server_steps_before_it_trains_the_aggregate(monkeypatch):
    """Fed-Refine with momentum: half a step towards the average, and the server's training starts there."""
    half = {"server.optimizer": "momentum", "server.optimizer_lr": 0.5, "server.steps": 3}
    seen = []

    class Spy(ServerOperators):
        def train(self, state, where, epochs=None, *, steps=None, loss=None):
            trained = super().train(state, where, epochs, steps=steps, loss=loss)
            seen.append((state, *trained))
            return trained

    context = tiny_context(algorithm="fed_refine", **half)
    after, (line,) = rounds_of(context, operators=Spy)
    ((start, trained, loss),) = seen
    average = read_payload(known_rounds(algorithm="fed_simclr")[0].aggregated, 32, context.task)
    first = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    for name, x in average.items():
        want = x if "running" in name else first[name] + 0.5 * (x - first[name])
        assert torch.allclose(start[name], want, rtol=2e-3, atol=1e-4), name
    got = read_payload(after.aggregated, 32, context.task)
    assert all(torch.allclose(got[n], trained[n], rtol=2e-3, atol=1e-4) for n in got) and line["server_loss"] == loss
    averaged, _ = rounds_of(tiny_context(algorithm="fed_refine", **half, **{"server.ema": 0.5}))
    assert averaged.aggregated == after.aggregated  # the average is of what was trained
    assert torch.equal(averaged.server_state["ema/" + name], trained[name])


def test_an_algorithm_without_an_aggregate_is_refused():
    for change in OPTIMIZED[:4]:
        with pytest.raises(ConfigError, match="local_only has no aggregated model"):
            configured_server(ALGORITHMS["local_only"], tiny(algorithm="local_only", **change))


def test_the_average_is_what_is_handed_out():
    result = known_run(rounds=3, **{"server.ema": 0.8})
    checkpoint = RunFolder(result.folder).latest()
    average = part_of(checkpoint.server_state, "ema")
    handed = read_payload(checkpoint.aggregated, 32, tiny_context().task)
    assert all(torch.allclose(handed[n], average[n], rtol=2e-3, atol=1e-4) for n in handed)
    in_full = read_payload((result.folder / "clients/client-02/model.fqssl").read_bytes(), 32, tiny_context().task)
    assert all(torch.equal(in_full[n], handed[n]) for n in handed)


@pytest.mark.parametrize("settings", OPTIMIZED, ids=lambda s: "-".join(map(str, s.values())))
def test_a_checkpoint_holds_all_that_the_next_round_needs(settings, tmp_path):
    context = tiny_context(rounds=3, images=80, **settings)
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    with Pool(context) as pool:
        engine = InProcess(pool)
        kept, _ = played(context, engine, pool, 2)
        folder.save(kept)
        (whole, line), (parts, again) = (play_round(context, engine, pool, c, 2) for c in (kept, folder.latest()))
    assert whole.server_state and equal(whole.server_state, parts.server_state)
    assert not equal(whole.server_state, kept.server_state)
    assert (whole.payloads, whole.aggregated) == (parts.payloads, parts.aggregated)
    timeless, same = ({k: v for k, v in x.items() if not k.endswith("_seconds")} for x in (line, again))
    assert timeless == same


def test_resumed_bit_for_bit(tmp_path):
    config = tiny(rounds=3, **OPTIMIZED[-1])
    whole = start(config, tmp_path / "whole", say=silent)
    with stopped_after(2):
        start(config, tmp_path / "parts", say=silent)
    parts = resume(tmp_path / "parts", say=silent)
    assert figures(parts) == figures(whole) and model_bytes(parts.folder) == model_bytes(whole.folder)
    one, two = (RunFolder(run.folder).latest().server_state for run in (whole, parts))
    assert one and equal(one, two)


def test_a_state_travels_bit_for_bit():
    state = {
        "a/b": torch.tensor([0.1, float("inf")]),
        "steps": 3,
        "rate": 0.1,
        "half": torch.ones(2, dtype=torch.float64),
    }
    assert equal(state_from_bytes(state_to_bytes(state)), state)
    assert not equal({**state, "steps": 4}, state) and not equal({}, state)
    data = state_to_bytes(state)
    for bad in (data[:-1], data[:60] + bytes([data[60] ^ 1]) + data[61:], b"", b"FQSSL\0"):
        with pytest.raises(ContainerError):
            state_from_bytes(bad)
