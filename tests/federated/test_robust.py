"""``aggregation.robust`` and ``aggregation.max_share``: every formula by hand, and around any algorithm that averages."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.federated.algorithms import ALGORITHMS, Arrived
from fedqssl.federated.algorithms.base import Round, capped
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.clip import with_clip
from fedqssl.federated.optimizers.krum import scores, with_krum
from fedqssl.federated.optimizers.median import with_median
from fedqssl.federated.optimizers.robust import hostile
from fedqssl.federated.optimizers.trimmed import with_trimmed_mean
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import read_payload
from fedqssl.lowbit.policy import is_statistic
from fedqssl.runs import round
from hostile import HOSTILE
from tiny_run import rounds_of, tiny, tiny_context

WORDS = ("median", "trimmed", "krum", "clip")
WRAPS = (with_median, with_trimmed_mean, with_krum, with_clip)
AVERAGING = {a.server: n for n, a in ALGORITHMS.items() if a.has_clients and a.federates}.values()
"""One algorithm for each server part."""


def played(wrap, before, parts, p):
    """The round of a server part that averages these states, wrapped."""

    def server(state, arrived, operators):
        return state, Round(average(parts, p), lambda w: {}, weights=p, parts=parts)

    _, found = wrap(server)({}, SimpleNamespace(), SimpleNamespace(before=lambda: before))
    assert found.weights.keys() == p.keys() and sum(found.weights.values()) == pytest.approx(1)
    return found


def of(values, key="a.weight"):
    return {n: {key: torch.tensor(x)} for n, x in values.items()}


def test_median_by_hand():
    """By entry: (1, 2, 9) -> 2 and (5, -7, 0) -> 0; with a fourth client, (1, 2, 4, 9) -> 3 and (-7, 0, 1, 5) -> 1/2."""
    values = {"a": [1.0, 5.0], "b": [9.0, -7.0], "c": [2.0, 0.0]}
    p = {"a": 0.98, "b": 0.01, "c": 0.01}
    found = played(with_median, {}, of(values), p)
    assert found.aggregate["a.weight"].tolist() == [2.0, 0.0] and found.weights == dict.fromkeys("abc", 1 / 3)
    found = played(with_median, {}, of({**values, "d": [4.0, 1.0]}), {**p, "d": 0.0})
    assert found.aggregate["a.weight"].tolist() == [3.0, 0.5]


def test_trimmed_mean_by_hand():
    """Of (1, 2, 3, 6, 1000) the inner three have the mean 11/3; of two clients none is left out."""
    p = dict.fromkeys("abcde", 0.2)
    values = {"a": [1000.0], "b": [2.0], "c": [1.0], "d": [6.0], "e": [3.0]}
    assert float(played(with_trimmed_mean, {}, of(values), p).aggregate["a.weight"]) == pytest.approx(11 / 3)
    two = played(with_trimmed_mean, {}, of({"a": [1.0], "b": [4.0]}), {"a": 0.9, "b": 0.1})
    assert float(two.aggregate["a.weight"]) == pytest.approx(2.5)
    assert [hostile(k) for k in (1, 2, 3, 9, 10, 15)] == [0, 0, 1, 1, 2, 3]


def test_krum_by_hand():
    """Five clients at 0, 1, 3, 4 and 20, f = 1, the two nearest count, |w|^2 = 4: the last is left out.

    Squared distances: 0 to 1 and 3: 1 + 9; 1 to 0 and 3: 1 + 4; 3 to 4 and 1: 1 + 4; 4 to 3 and 1: 1 + 9; 20: 256 + 289.
    """
    parts = of({"a": [0.0], "b": [1.0], "c": [3.0], "d": [4.0], "e": [20.0]})
    before, p = {"a.weight": torch.tensor([2.0])}, {"a": 0.1, "b": 0.2, "c": 0.1, "d": 0.1, "e": 0.5}
    assert scores(parts, before, 1) == pytest.approx({"a": 2.5, "b": 1.25, "c": 1.25, "d": 2.5, "e": 545 / 4})
    found = played(with_krum, before, parts, p)
    assert found.weights == pytest.approx({"a": 0.2, "b": 0.4, "c": 0.2, "d": 0.2, "e": 0.0})
    assert float(found.aggregate["a.weight"]) == pytest.approx(0.4 + 0.6 + 0.8) and found.parts.keys() == set("abcd")


def test_krum_sees_statistics_and_is_not_ruled_by_their_size():
    """Variances of a hundred thousand that differ by 1% do not hide a weight that is nine times too large."""
    before = {"a.weight": torch.tensor([1.0]), "n.running_var": torch.tensor([1e5])}
    parts = {
        n: {"a.weight": torch.tensor([1.0]), "n.running_var": torch.tensor([1e5 + 1e3 * i])}
        for i, n in enumerate("abcd")
    }
    p = dict.fromkeys("abcd", 0.25)
    parts["b"] = {**parts["b"], "a.weight": torch.tensor([9.0])}
    assert played(with_krum, before, parts, p).weights["b"] == 0
    parts["b"] = {**parts["c"], "n.running_var": torch.tensor([1e9])}
    assert played(with_krum, before, parts, p).weights["b"] == 0


def test_clip_by_hand():
    """Steps from (1, 1): (3, 4), (0, 1) and (-30, -40), of lengths 5, 1 and 50; the median is 5.

    Clipped: (3, 4), (0, 1), (-3, -4). With p = (1/4, 1/4, 1/2) their mean is (-0.75, -0.75). The statistic has a bound of its
    own: steps of 1, 2 and 1000 are clipped to 1, 2 and 2, with the mean 1.75.
    """
    before = {"a.weight": torch.tensor([1.0, 1.0]), "n.running_var": torch.tensor([10.0])}
    steps = {"a": ([3.0, 4.0], 1.0), "b": ([0.0, 1.0], 2.0), "c": ([-30.0, -40.0], 1000.0)}
    parts = {
        n: {"a.weight": 1 + torch.tensor(d), "n.running_var": torch.tensor([10 + v])} for n, (d, v) in steps.items()
    }
    found = played(with_clip, before, parts, {"a": 0.25, "b": 0.25, "c": 0.5})
    assert torch.allclose(found.aggregate["a.weight"], torch.tensor([0.25, 0.25]))
    assert float(found.aggregate["n.running_var"]) == pytest.approx(11.75)
    assert torch.allclose(found.parts["c"]["a.weight"], torch.tensor([-2.0, -3.0]))
    assert found.weights == {"a": 0.25, "b": 0.25, "c": 0.5}


@pytest.mark.parametrize("wrap", WRAPS)
def test_equal_clients_and_the_order_of_replies_change_nothing(wrap):
    torch.manual_seed(0)
    before = {"a.weight": torch.randn(3, 4), "x.high": torch.tensor(1.0)}
    same = {n: {"a.weight": before["a.weight"] + 0.5} for n in "abcd"}
    p = dict.fromkeys("abcd", 0.25)
    assert torch.allclose(played(wrap, before, same, p).aggregate["a.weight"], before["a.weight"] + 0.5)
    parts = {n: {"a.weight": torch.randn(3, 4), **({"x.high": torch.rand(())} if n != "d" else {})} for n in "abcd"}
    one, two = played(wrap, before, parts, p), played(wrap, before, dict(reversed(parts.items())), p)
    assert all(torch.equal(x, two.aggregate[n]) for n, x in one.aggregate.items()) and "x.high" in one.aggregate


@pytest.mark.parametrize("wrap", WRAPS)
def test_one_of_five_cannot_move_the_aggregate_far(wrap):
    """Honest clients lie between 0 and 1; the average with the fifth is at 200."""
    parts = of({"a": [0.0], "b": [0.2], "c": [0.6], "d": [1.0], "e": [1000.0]})
    found = played(wrap, {"a.weight": torch.tensor([0.1])}, parts, dict.fromkeys("abcde", 0.2))
    assert 0 <= float(found.aggregate["a.weight"]) <= 1


@pytest.mark.parametrize("algorithm", AVERAGING)
def test_around_any_algorithm_that_averages(algorithm, monkeypatch):
    """The same uploads with every word: another aggregate, statistics included; everything else stays."""
    found = {}

    def all_words(algorithm, config):
        def server(state, arrived, operators):
            for word in ("none", *WORDS):
                chosen = config.aggregation.model_copy(update={"robust": word})
                part = configured_server(algorithm, config.model_copy(update={"aggregation": chosen}))
                found[word] = part(state, arrived, operators)[1]
            return state, found["none"]

        return server

    monkeypatch.setattr(round, "configured_server", all_words)
    rounds_of(tiny_context(algorithm=algorithm, images=80, **{"server.dequantize_epochs": 0}))
    plain = found.pop("none")
    for after in found.values():
        assert (after.losses, after.rejected, after.hand_out) == (plain.losses, plain.rejected, plain.hand_out)
        changed = {n for n, w in after.aggregate.items() if not torch.equal(w, plain.aggregate[n])}
        assert after.aggregate.keys() == plain.aggregate.keys()
        assert any(map(is_statistic, changed)) and not all(map(is_statistic, changed))


@pytest.mark.parametrize("word", WORDS)
def test_what_cannot_be_is_refused(word):
    for algorithm in ("local_only", "server_only", "central"):
        config = tiny(algorithm=algorithm, **{"aggregation.robust": word})
        with pytest.raises(ConfigError, match=f"{algorithm} averages no clients' models"):
            configured_server(ALGORITHMS[algorithm], config)
    both = tiny(**{"aggregation.robust": word, "aggregation.weights": "bits"})
    with pytest.raises(ConfigError, match="choose one"):
        configured_server(ALGORITHMS["fed_qssl"], both)


def test_shares_are_capped_by_hand():
    """(0.7, 0.2, 0.1) at 0.4: the others get 0.6 as 2 to 1, then (0.4, 0.4, 0.2). At 0.35 the second is cut, too."""
    p = {"a": 0.7, "b": 0.2, "c": 0.1}
    assert capped(p, 1.0) == p and capped(p, 0.7) == p
    assert capped(p, 0.4) == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.2})
    assert capped(p, 0.35) == pytest.approx({"a": 0.35, "b": 0.35, "c": 0.3})
    assert capped(p, 0.3) == capped(p, 0.01) == dict.fromkeys("abc", 1 / 3)
    assert capped({"a": 1.0, "b": 0.0}, 0.6) == {"a": 0.5, "b": 0.5}


def test_claimed_images_count_up_to_max_share():
    samples = {"a": 10**7, "b": 30, "c": 10}
    arrived = Arrived(dict.fromkeys(samples, b""), samples, tuple(samples), dict.fromkeys(samples, 4), max_share=0.5)
    assert arrived.shares() == pytest.approx({"a": 0.5, "b": 0.375, "c": 0.125})
    assert arrived.shares(["b", "c"]) == {"b": 0.5, "c": 0.5}


def test_max_share_reaches_a_run():
    uneven = {"algorithm": "fed_simclr", "images": 80, "partition": "dirichlet", "beta": 0.3, "seed": 1}
    _, (plain,) = rounds_of(tiny_context(**uneven))
    _, (line,) = rounds_of(tiny_context(**uneven, **{"aggregation.max_share": 0.35}))
    assert max(plain["weights"].values()) > 0.36 and max(line["weights"].values()) == pytest.approx(0.35)


def test_measured_statistics_are_the_buffers_alone(monkeypatch):
    """Poisoned statistics leave no trace: the same aggregate as with honest ones, which by default is another one."""
    chosen = {"algorithm": "fed_simclr", "images": 80, "bits": 32, "aggregation.batch_norm": "buffer"}
    context = tiny_context(**chosen)
    honest, _ = rounds_of(context)
    plain, _ = rounds_of(tiny_context(**{**chosen, "aggregation.batch_norm": "average"}))
    monkeypatch.setattr(round, "check_values", lambda received, found: None)
    entry = ALGORITHMS["fed_simclr"]

    def client(payload, job, data):
        sent, metrics = entry.client(payload, job, data)
        return HOSTILE["huge variances"](sent), metrics

    monkeypatch.setitem(ALGORITHMS, "fed_simclr", dataclasses.replace(entry, client=client))
    poisoned, (line,) = rounds_of(tiny_context(**chosen))
    assert poisoned.aggregated == honest.aggregated != plain.aggregated and line["rejected"] == {}
    states = [read_payload(x.aggregated, 32, context.task) for x in (honest, plain)]
    assert all(is_statistic(n) == (not torch.equal(x, states[1][n])) for n, x in states[0].items())


def test_statistics_without_an_aggregate_are_refused():
    with pytest.raises(ConfigError, match="local_only has no aggregated model"):
        configured_server(
            ALGORITHMS["local_only"], tiny(algorithm="local_only", **{"aggregation.batch_norm": "buffer"})
        )
