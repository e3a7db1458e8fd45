"""``aggregation.robust = "embedding"``: the formula by hand, who is left out and who stays, and what is refused."""

import dataclasses

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.cost.ledger import round_work
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.embedding import agreements, apart, similarity
from fedqssl.federated.state import read_payload, write_state
from fedqssl.lowbit import to_bytes
from fedqssl.lowbit.policy import is_weight
from fedqssl.runs import round
from hostile import HOSTILE
from tiny_run import rounds_of, tiny, tiny_context

CHECKED = {"aggregation.robust": "embedding"}
TEN = {"clients": 10, "bits": [4, 4, 6, 6, 6, 8, 8, 8, 12, 12], "images": 400, "batch_size": 16, "lr": 0.05, "width": 8}
"""Small steps of a wider network, so that honest models agree at all: at width 4 and the usual rate they hardly do."""


def test_similarities_by_hand():
    """Centred: (-1, 0, 1) and (1, 1, -2); S = z z^T; <S, S'> = <z, z'>^2 = 9 of lengths 2 and 6: 3/4. Axes do not count."""
    a, b = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[5.0], [5.0], [2.0]])
    assert float((similarity(a) * similarity(b)).sum()) == pytest.approx(9 / 12)
    turned = torch.cat([torch.zeros(3, 1), 7 * a], 1)
    assert torch.allclose(similarity(turned), similarity(a))
    assert not similarity(torch.ones(3, 2)).any() and not similarity(torch.full((3, 2), float("nan"))).any()


def test_two_of_the_same_mind_do_not_vouch_for_each_other():
    draws = torch.Generator().manual_seed(0)
    z, other = (torch.randn(40, 5, generator=draws) for _ in range(2))
    seen = {f"c{i}": z + 0.3 * torch.randn(40, 5, generator=draws) for i in range(8)} | {"x": other, "y": other}
    a = agreements(seen)
    assert set(apart(a)) == {"x", "y"} and a["x"] < 0.4 < 0.6 < min(a[f"c{i}"] for i in range(8))


def test_who_stands_apart_by_hand():
    """M = 0.4 and MAD = 0.02: both limits, 0.4 - 2 (1.4826) 0.02 = 0.34 and 0.4 / 3 = 0.13, must be missed."""
    usual = {"a": 0.38, "b": 0.4, "c": 0.42, "d": 0.43}
    assert not apart(usual | {"e": 0.19})
    found = apart(usual | {"e": 0.12})
    assert set(found) == {"e"} and "0.12 alike, 0.40 is usual" in found["e"]
    assert not apart({"a": 0.9, "e": 0.0}) and not apart({})
    assert not apart({"a": 0.1, "b": 0.9, "c": 0.05, "d": 0.8, "e": 0.0}), "without a usual value nobody is apart"


def collapsed(upload, bits, task):
    """Every unit of a layer says what its first one says."""
    model, state = task.converted(bits), read_payload(upload, bits, task)
    write_state(model, {n: x[:1].expand_as(x) if is_weight(x) else x for n, x in state.items()})
    return to_bytes(model)


def test_collapsed_and_constant_models_are_left_out_and_honest_ones_of_all_bits_stay(monkeypatch):
    monkeypatch.setattr(round, "check_values", lambda received, found: None)  # which rejects constant weights itself
    context = tiny_context(algorithm="fed_simclr", **TEN, **CHECKED)
    names = sorted(context.bits)
    _, (honest,) = rounds_of(context)
    assert honest["rejected"] == {} and honest["weights"].keys() == set(names)
    entry = ALGORITHMS["fed_simclr"]

    def client(payload, job, data):
        sent, metrics = entry.client(payload, job, data)
        if data.name == names[1]:
            return collapsed(sent, data.bits, job.task), metrics
        return HOSTILE["constant weights"](sent) if data.name == names[8] else sent, metrics

    monkeypatch.setitem(ALGORITHMS, "fed_simclr", dataclasses.replace(entry, client=client))
    _, (line,) = rounds_of(context)
    assert line["rejected"].keys() == {names[1], names[8]}
    assert all("sees the buffer's images unlike the others" in why for why in line["rejected"].values())
    assert line["weights"].keys() == set(names) - {names[1], names[8]}


@pytest.mark.parametrize("algorithm", ["fed_qssl", "fed_qssl_plus", "fed_avg"])
def test_an_honest_round_is_the_algorithms_own(algorithm):
    plain, (line,) = rounds_of(tiny_context(algorithm=algorithm, images=80))
    checked, (same,) = rounds_of(tiny_context(algorithm=algorithm, images=80, **CHECKED))
    assert checked.aggregated == plain.aggregated and same["rejected"] == line["rejected"] == {}


def test_what_cannot_be_is_refused_and_the_ledger_counts_the_passes():
    with pytest.raises(ConfigError, match="fed_paq's clients send no models"):
        configured_server(ALGORITHMS["fed_paq"], tiny(algorithm="fed_paq", **CHECKED))
    plain, more = (round_work(tiny(algorithm="fed_simclr", **x), 3) for x in ({}, CHECKED))
    assert more == dataclasses.replace(plain, passes=1)
