"""``aggregation.robust = "fltrust"``: the formula by hand, who counts and who does not, and what is refused."""

import dataclasses
import math

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.cost.ledger import round_work
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.fltrust import flat, root_of_trust, trust, trusted_sum
from fedqssl.federated.optimizers.pseudo_gradient import step_from
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.state import read_payload, read_state, write_state
from fedqssl.lowbit import to_bytes
from fedqssl.lowbit.policy import is_statistic
from fedqssl.runs import round
from tiny_run import rounds_of, tiny, tiny_context

FLTRUST = {"aggregation.robust": "fltrust"}
ENOUGH = {"images": 400, "buffer_ratio": 0.3, "lr": 0.1}
"""Images for updates that point somewhere."""


def of(values):
    return {n: {"a.weight": torch.tensor(x)} for n, x in values.items()}


def test_by_hand():
    """g = (0, 3); updates at 0, 60 and 180 degrees have cosines 1, 1/2 and -1; the median of the positive ones is 3/4.

    Trust: 1 (capped), 2/3, 0, so that q = (3/5, 2/5, 0). Of length 3, the updates are (0, 3) and (3 sqrt(3)/2, 3/2).
    CHANCE / sqrt(2) would be beyond all cosines: the tensors are padded with zeros, which change nothing else.
    """
    pad = [0.0] * 998
    root = {"a.weight": torch.tensor([0.0, 3.0, *pad])}
    updates = of(
        {"a": [0.0, 7.0, *pad], "b": [10 * math.sqrt(3) / 2, 5.0, *pad], "c": [0.0, -1.0, *pad]},
    )
    t = trust(updates, root, dict.fromkeys("abc", 8))
    assert t == pytest.approx({"a": 1.0, "b": 2 / 3, "c": 0.0})
    q = {n: x / sum(t.values()) for n, x in t.items()}
    found = trusted_sum({"a.weight": torch.tensor([1.0, 1.0, *pad])}, updates, root, q)["a.weight"]
    assert found[:2].tolist() == pytest.approx([1 + 0.4 * 1.5 * math.sqrt(3), 1 + 0.6 * 3 + 0.4 * 1.5])


def test_cosines_are_compared_within_a_bitwidth():
    """Rounding noise of ten times the signal: cosines of a tenth, and the same trust as without noise."""
    draws = torch.Generator().manual_seed(0)
    g = torch.randn(100_000, generator=draws)
    noise = {"few1": 10.0, "few2": 10.0, "many1": 0.1, "many2": 0.1}
    updates = {n: {"a.weight": g + s * torch.randn(len(g), generator=draws)} for n, s in noise.items()}
    bits = {"few1": 4, "few2": 4, "many1": 12, "many2": 12}
    t = trust(updates, {"a.weight": g}, bits)
    assert min(t["few1"], t["few2"]) > 0.8 and min(t["many1"], t["many2"]) > 0.8
    mixed = trust(updates, {"a.weight": g}, dict.fromkeys(bits, 8))
    assert mixed["few1"] < 0.3, "compared with all others, few bits would be punished"


def test_chance_earns_little():
    """Noise that is alone in its bitwidth is its own median; the best of twenty kinds still has less than full trust."""
    draws = torch.Generator().manual_seed(1)
    g = torch.randn(10_000, generator=draws)
    updates = {f"n{i}": {"a.weight": torch.randn(len(g), generator=draws)} for i in range(20)}
    t = trust(updates, {"a.weight": g}, {n: i for i, n in enumerate(updates, 1)})
    assert max(t.values()) < 0.99 and sum(t.values()) / len(t) < 0.25


def attacked(monkeypatch, change, who):
    """The first round of three 8-bit clients, one of whom sends ``received + change(update)``."""
    context = tiny_context(bits=[8, 8, 8], algorithm="fed_simclr", **ENOUGH, **FLTRUST)
    entry = ALGORITHMS["fed_simclr"]

    def client(payload, job, data):
        sent, metrics = entry.client(payload, job, data)
        if data.name != who:
            return sent, metrics
        start, end = (read_payload(x, data.bits, job.task) for x in (payload, sent))
        model = job.task.converted(data.bits)
        write_state(model, {n: x if is_statistic(n) else start[n] + change(x - start[n]) for n, x in end.items()})
        return to_bytes(model), metrics

    monkeypatch.setitem(ALGORITHMS, "fed_simclr", dataclasses.replace(entry, client=client))
    found = rounds_of(context)
    monkeypatch.undo()
    return found


def test_a_sign_flipped_client_has_no_influence_and_a_large_one_no_more_than_others(monkeypatch):
    """Weights of a client that is honest, flips its update, or sends it ten times as long."""
    context = tiny_context(bits=[8, 8, 8], **ENOUGH)
    names, before = sorted(context.bits), read_state(context.task.converted(32))
    honest, (plain,) = attacked(monkeypatch, lambda u: u, names[1])
    assert plain["weights"][names[1]] > 0.1
    _, (line,) = attacked(monkeypatch, lambda u: -u, names[1])
    assert line["weights"][names[1]] == 0.0 and sum(line["weights"].values()) == pytest.approx(1)
    ten, (line,) = attacked(monkeypatch, lambda u: 10 * u, names[1])
    assert line["weights"][names[1]] == pytest.approx(plain["weights"][names[1]], abs=0.1)
    states = [read_payload(x.aggregated, 32, context.task) for x in (honest, ten)]
    a, b = (flat(step_from(before, s), step_from(before, s)).norm() for s in states)
    assert float(b) < 1.3 * float(a)


def test_updates_are_as_long_as_the_servers(monkeypatch):
    """One client alone: the aggregate is as far from the model before the round as the server's own training takes it."""
    context = tiny_context(clients=1, bits=32, algorithm="fed_simclr", images=80, **FLTRUST)
    roots = []

    def watched(algorithm, config):
        server = configured_server(algorithm, config)

        def part(state, arrived, operators):
            before = operators.before()
            roots.append((before, step_from(before, root_of_trust(operators))))
            return server(state, arrived, operators)

        return part

    monkeypatch.setattr(round, "configured_server", watched)
    after, _ = rounds_of(context)
    before, root = roots[0]
    moved = step_from(before, read_payload(after.aggregated, 32, context.task))
    assert float(flat(moved, root).norm()) == pytest.approx(float(flat(root, root).norm()), rel=1e-3)


@pytest.mark.parametrize("algorithm", ["fed_qssl", "fed_qssl_plus", "fed_refine", "fed_distill"])
def test_around_algorithms_without_labels(algorithm):
    """Weights are trust, statistics are trusted clients', and what follows the average still does."""
    more = {**ENOUGH, "images": 240, "bits": 8}
    plain, (line,) = rounds_of(tiny_context(algorithm=algorithm, **more))
    after, (trusted,) = rounds_of(tiny_context(algorithm=algorithm, **more, **FLTRUST))
    assert sum(trusted["weights"].values()) == pytest.approx(1) and trusted["weights"] != line["weights"]
    assert after.aggregated != plain.aggregated and (trusted["server_loss"] is None) == (line["server_loss"] is None)


def test_the_ledger_counts_the_servers_own_steps():
    plain, more = (round_work(tiny(algorithm="fed_simclr", **x), 3) for x in ({}, FLTRUST))
    assert more == dataclasses.replace(plain, buffer_epochs=1)
    steps = round_work(tiny(algorithm="fed_refine", **{"server.steps": 5}, **FLTRUST), 3)
    assert (steps.buffer_epochs, steps.buffer_steps) == (0, 10)


def test_nobody_who_agrees_is_a_rejected_round(monkeypatch):
    monkeypatch.setattr("fedqssl.federated.optimizers.fltrust.trust", lambda u, g, b: dict.fromkeys(u, 0.0))
    after, (line,) = rounds_of(tiny_context(algorithm="fed_simclr", images=80, **FLTRUST))
    assert "agrees with the server's own" in line["round_rejected"] and line["rejected"] == {}
    assert issubclass(NothingToAggregateError, ValueError) and after.rounds_done == 1


def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="fed_avg trains with labels"):
        configured_server(ALGORITHMS["fed_avg"], tiny(algorithm="fed_avg", **FLTRUST))
    unread = dataclasses.replace(ALGORITHMS["fed_simclr"], check=lambda payload, bits, task: None)
    with pytest.raises(ConfigError, match="how its uploads are read"):
        configured_server(unread, tiny(algorithm="fed_simclr", **FLTRUST))
    context = tiny_context(algorithm="fed_simclr", images=80, **FLTRUST)
    monkeypatch.setattr(type(context), "buffer", lambda self: torch.zeros(0, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="needs a buffer, and the server has no images"):
        rounds_of(context)
