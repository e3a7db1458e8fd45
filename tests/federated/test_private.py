"""``privacy.client_epsilon``: the mechanism by hand, the accountant against closed forms, and who is refused."""

import dataclasses
import math
from statistics import NormalDist
from types import SimpleNamespace

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.config.sections import PrivacyConfig
from fedqssl.federated.algorithms import ALGORITHMS, Arrived
from fedqssl.federated.algorithms.base import Round
from fedqssl.federated.optimizers import configured_server, private
from fedqssl.federated.optimizers.private import clipped, noise_multiplier, with_client_privacy
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import read_payload
from fedqssl.lowbit.policy import is_statistic
from fedqssl.runs import RunError
from fedqssl.runs.extend import _plan
from tiny_run import rounds_of, tiny, tiny_context

pytest.importorskip("dp_accounting", reason="the accountant is an extra: pip install 'fedqssl[privacy]'")

W, V = "a.weight", "n.running_var"
ON = {"privacy.client_epsilon": 5.0, "aggregation.batch_norm": "buffer"}
ALLOWED = ("fed_refine", "fed_avg", "fed_prox", "fed_simclr", "fed_simsiam")


def test_updates_are_clipped_as_one_vector():
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    assert {k: x.flatten().tolist() for k, x in clipped(update, 1.0).items()} == {
        "a": pytest.approx([0.6, 0.0]),
        "b": pytest.approx([0.8]),
    }
    assert torch.equal(clipped(update, 6.0)["b"], update["b"].double())
    assert clipped({"a": torch.zeros(2)}, 1.0)["a"].tolist() == [0.0, 0.0]


def epsilon_of_gaussian(z: float, rounds: int, delta: float) -> float:
    """The exact epsilon of so many Gaussian mechanisms of sensitivity 1 (Balle and Wang, ICML 2018), by bisection."""
    mu, normal = math.sqrt(rounds) / z, NormalDist()

    def exceeded(eps: float) -> float:
        return normal.cdf(mu / 2 - eps / mu) - math.exp(eps) * normal.cdf(-mu / 2 - eps / mu)

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("epsilon, rounds", [(1.0, 1), (8.0, 20), (3.0, 100)])
def test_the_multiplier_keeps_its_promise_and_is_not_far_above_the_least(epsilon, rounds):
    """Without sampling, against the exact formula: never less noise than needed, at most a fifth more."""
    z = noise_multiplier(epsilon, 1e-5, rounds, 50, 50)
    assert epsilon_of_gaussian(z, rounds, 1e-5) <= epsilon
    assert epsilon_of_gaussian(z / 1.2, rounds, 1e-5) > epsilon


def test_more_rounds_need_more_noise_and_sampling_less():
    assert noise_multiplier(4.0, 1e-5, 40, 100, 100) > noise_multiplier(4.0, 1e-5, 10, 100, 100)
    assert noise_multiplier(4.0, 1e-5, 10, 1000, 10) < noise_multiplier(4.0, 1e-5, 10, 1000, 1000)
    assert noise_multiplier(1e6, 1e-5, 1, 10, 10) == private.LEAST
    with pytest.raises(ConfigError, match="less than the accountant can prove"):
        noise_multiplier(0.001, 1e-9, 1000, 10, 10)


def played(monkeypatch, states, clients=("a", "b", "c", "d"), clip=1.0, z=0.0, simulated=True, seed=0):
    """One round of a plain average, made private; every client received (1, 1)."""
    monkeypatch.setattr(private, "noise_multiplier", lambda *words: z)
    received = {n: {W: torch.tensor([1.0, 1.0]), V: torch.tensor([2.0])} for n in states}
    before = {W: torch.tensor([10.0, 20.0]), V: torch.tensor([7.0])}
    context = SimpleNamespace(
        simulated=simulated, bits=dict.fromkeys(clients, 8), config=SimpleNamespace(seed=seed, rounds=3)
    )
    read = lambda some: {n: (received if data == b"r" else states)[n] for n, data in some.items()}  # noqa: E731
    operators = SimpleNamespace(before=lambda: before, read=read, context=context, round_number=0)
    sent = dict.fromkeys(states, b"r")
    arrived = Arrived(dict.fromkeys(states, b"s"), dict.fromkeys(states, 9), clients, dict.fromkeys(clients, 8))
    p = dict.fromkeys(states, 1 / len(states))

    def server(state, arrived, operators):
        return state, Round(average(states, p), lambda w: {}, weights=p, parts=states)

    wrapped = with_client_privacy(server, PrivacyConfig(client_epsilon=1.0, clip=clip))
    return wrapped({}, dataclasses.replace(arrived, sent=sent), operators)[1]


def test_a_round_by_hand(monkeypatch):
    """Updates (3, 4) -> (0.6, 0.8) and (0, 0.5), four drawn, two arrived: a quarter of the sum (0.6, 1.3) is added."""
    states = {
        "a": {W: torch.tensor([4.0, 5.0]), V: torch.tensor([99.0])},
        "b": {W: torch.tensor([1.0, 1.5]), V: torch.tensor([99.0])},
    }
    found = played(monkeypatch, states)
    assert found.aggregate[W].tolist() == pytest.approx([10 + 0.15, 20 + 0.325])
    assert found.aggregate[V].tolist() == [7.0], "no statistics of clients"
    assert found.weights == {"a": 0.25, "b": 0.25} and not found.parts


def test_one_client_moves_the_sum_by_at_most_twice_the_clip(monkeypatch):
    """Whatever it sends: that is what the noise is measured by."""
    rest = {n: {W: torch.randn(2), V: torch.zeros(1)} for n in "bcd"}
    ends = [
        played(monkeypatch, {**rest, "a": {W: torch.tensor(x), V: torch.zeros(1)}}, clip=0.5).aggregate[W]
        for x in ([1e4, -1e4], [-1e4, 1e4], [1.0, 1.0])
    ]
    moves = [4 * float((x - y).norm()) for x in ends for y in ends]
    assert max(moves) == pytest.approx(2 * 0.5, rel=1e-3)


def test_the_noise_is_that_of_the_multiplier(monkeypatch):
    """Standard deviation 2 C z / n of every entry; known in simulations, secret on machines."""
    wide = {"a": {W: torch.ones(2), V: torch.zeros(1)}}
    draws = [
        played(monkeypatch, wide, z=3.0, clip=0.5, seed=s).aggregate[W] - torch.tensor([10.0, 20.0]) for s in range(400)
    ]
    assert float(torch.stack(draws).std()) == pytest.approx(2 * 0.5 * 3 / 4, rel=0.1)
    same = [played(monkeypatch, wide, z=3.0).aggregate[W] for _ in range(2)]
    assert torch.equal(*same)
    secret = [played(monkeypatch, wide, z=3.0, simulated=False).aggregate[W] for _ in range(2)]
    assert not torch.equal(*secret)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_may_and_who_may_not(name):
    config = tiny(algorithm=name, **ON)
    if name in ALLOWED:
        configured_server(ALGORITHMS[name], config)
        return
    with pytest.raises(ConfigError, match=r"privacy.client_epsilon cannot be used: .*(single models|take turns)"):
        configured_server(ALGORITHMS[name], config)


@pytest.mark.parametrize(
    "words, why",
    [
        ({"aggregation.batch_norm": "average"}, "aggregation.batch_norm=buffer"),
        ({"aggregation.robust": "trimmed"}, "look at single models"),
        ({"aggregation.weights": "bits"}, "look at single models"),
        ({"server.optimizer": "fedexp"}, "choose another"),
    ],
)
def test_settings_that_look_at_single_clients_are_refused(words, why):
    with pytest.raises(ConfigError, match=why):
        configured_server(ALGORITHMS["fed_refine"], tiny(algorithm="fed_refine", **{**ON, **words}))


def test_without_the_accountant_the_extra_is_named(monkeypatch):
    noise_multiplier.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"fedqssl\[privacy\]"):
        noise_multiplier(1.0, 1e-5, 1, 2, 2)


def test_a_real_round(monkeypatch):
    """Hardly any noise and a wide clip: fed_refine's own average with equal shares; ranges come from the buffer."""
    words = {"algorithm": "fed_refine", "images": 80, "aggregation.batch_norm": "buffer", "partition": "iid"}
    words["server.dequantize_epochs"] = 0
    monkeypatch.setattr(private, "noise_multiplier", lambda *a: 0.0)
    context = tiny_context(**words, **{"privacy.client_epsilon": 1.0, "privacy.clip": 1e6})
    after, (line,) = rounds_of(context)
    assert set(line["weights"].values()) == {1 / 3} and not line["rejected"]
    noisy = tiny_context(**words, **{"privacy.client_epsilon": 1.0, "privacy.clip": 1e-9})
    kept, _ = rounds_of(noisy)
    first, _ = rounds_of(noisy, 0)
    a, b, c = (read_payload(x.aggregated, 32, context.task) for x in (after, kept, first))
    assert all(torch.allclose(b[n], c[n], atol=1e-6) for n in c if not is_statistic(n))
    assert any(not torch.allclose(a[n], c[n], atol=1e-3) for n in c if not is_statistic(n))


def test_a_private_run_is_not_extended(tmp_path):
    """Its noise is for the rounds that it was planned for."""
    config = tiny(algorithm="fed_refine", rounds=2, **ON)
    with pytest.raises(RunError, match="is for 2 rounds"):
        _plan(SimpleNamespace(path=tmp_path, latest=lambda: None), config, 5)
