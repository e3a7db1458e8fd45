"""``aggregation.weights``: every formula recomputed by hand, around any algorithm that averages, and resumed bit for bit."""

from types import SimpleNamespace

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.algorithms.base import Round
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.agreement import with_weights_by_agreement
from fedqssl.federated.optimizers.bits import cell, with_weights_by_bits
from fedqssl.federated.optimizers.fedexp import with_fedexp
from fedqssl.federated.optimizers.mask import with_mask
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import read_payload, weight_names
from fedqssl.lowbit.policy import is_statistic, is_weight
from fedqssl.quant import round_to_grid
from fedqssl.runs import RunFolder, resume, round, start
from tiny_run import figures, model_bytes, rounds_of, silent, tiny, tiny_context

WORDS = ("bits", "agreement", "mask")
AVERAGING = {a.server: n for n, a in ALGORITHMS.items() if a.has_clients and a.federates}.values()
"""One algorithm for each server part."""


def weighted(wrap, before, parts, weights, bits, inside=lambda server: server):
    """The round of a server part that averages these states, with other weights; a statistic comes with every state."""
    before = {"a.weight": torch.tensor(before), "bn.running_mean": torch.tensor([1.0, 0.0])}
    parts = {
        n: {"a.weight": torch.tensor(w), "bn.running_mean": torch.tensor([1.0, float(i)])}
        for i, (n, w) in enumerate(parts.items())
    }

    def server(state, arrived, operators):
        return state, Round(average(parts, weights), lambda w: {}, weights=weights, parts=parts)

    operators = SimpleNamespace(before=lambda: before)
    state, found = inside(wrap(server))({}, SimpleNamespace(bits=bits), operators)
    assert state == {} and sum(found.weights.values()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(found.aggregate["bn.running_mean"], average(parts, weights)["bn.running_mean"])
    return found


@pytest.mark.parametrize("wrap", [with_weights_by_bits, with_mask])
def test_layers_in_floats_are_averaged_as_by_the_algorithm(wrap):
    parts, p = {"two": [[0.9, 0.1]], "full": [[0.2, -0.4]]}, {"two": 0.5, "full": 0.5}
    bits = {"two": 2, "full": 32}
    plain = average({n: {"a.weight": torch.tensor(w)} for n, w in parts.items()}, p)["a.weight"]
    skipped = weighted(lambda server: wrap(server, ("a",)), [[0.5, 0.5]], parts, p, bits)
    assert torch.equal(skipped.aggregate["a.weight"], plain) and skipped.weights == p
    assert not torch.equal(weighted(wrap, [[0.5, 0.5]], parts, p, bits).aggregate["a.weight"], plain)


def test_weights_by_bits_by_hand():
    """Levels: tanh(x) / max|tanh(w)| with w = (atanh(0.5), -atanh(0.25)), the scale 0.5.

    The average is (atanh(0.6), -atanh(0.25)): d = (0.1 / 0.5 + 0) / 2 = 0.1. Cells are 2/3, 2/15 and 0, and so the factors
    3/23, 3/7 and 1; with p = (1/2, 1/4, 1/4) they become 3/46, 3/28 and 1/4, whose sum is 272/644.
    """
    w = torch.atanh(torch.tensor([[0.5, -0.25]], dtype=torch.float64))
    there = torch.atanh(torch.tensor([[0.6, -0.25]], dtype=torch.float64))
    move = torch.tensor([[0.3, 0.1]], dtype=torch.float64)
    parts = {"two": there + move, "four": there - move, "full": there - move}
    p, bits = {"two": 0.5, "four": 0.25, "full": 0.25}, {"two": 2, "four": 4, "full": 32, "absent": 16}
    found = weighted(with_weights_by_bits, w.tolist(), {n: x.tolist() for n, x in parts.items()}, p, bits)
    q = {"two": 42 / 272, "four": 69 / 272, "full": 161 / 272}
    assert found.weights == pytest.approx(q, rel=1e-5)
    want = there + (42 - 69 - 161) / 272 * move
    assert torch.allclose(found.aggregate["a.weight"].double(), want, atol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_cell_is_what_rounding_a_small_step_has(bits):
    """From a grid point, the variance of a step d is d (c - d): d c up to the square of the step."""
    top, draws = 2**bits - 1, torch.Generator().manual_seed(0)
    d = 0.01 * cell(bits)
    t = torch.full((200_000,), d * top / 2, dtype=torch.float64)  # from the lowest level
    levels = round_to_grid(t, top, "stochastic", draws) * 2 / top
    assert float(levels.var()) == pytest.approx(d * (cell(bits) - d), rel=0.1)
    assert cell(32) == 0


def test_weights_by_agreement_by_hand():
    """w = (3, 4): cos of (3, 4) is 1, of (4, 3) 24/25, of (0, -2) -4/5, and so 0.

    p = (1/2, 1/4, 1/4) gives 1/2 and 6/25, whose sum is 37/50: q = (25/37, 12/37, 0).
    """
    parts = {"same": [[3.0, 4.0]], "near": [[4.0, 3.0]], "against": [[0.0, -2.0]]}
    p = {"same": 0.5, "near": 0.25, "against": 0.25}
    found = weighted(with_weights_by_agreement, [[3.0, 4.0]], parts, p, dict.fromkeys(p, 4))
    assert found.weights == pytest.approx({"same": 25 / 37, "near": 12 / 37, "against": 0}, rel=1e-9)
    assert torch.allclose(found.aggregate["a.weight"], torch.tensor([[(75 + 48) / 37, (100 + 36) / 37]]))


@pytest.mark.parametrize("before", [[[0.0, 0.0]], [[-1.0, -1.0]]])
def test_where_nobody_agrees_the_algorithm_decides(before):
    """No direction before the round, or none that a client kept."""
    p = {"a": 0.75, "b": 0.25}
    found = weighted(with_weights_by_agreement, before, {"a": [[1.0, 2.0]], "b": [[5.0, 2.0]]}, p, dict.fromkeys(p, 4))
    assert found.weights == pytest.approx(p) and found.aggregate["a.weight"].tolist() == [[2.0, 2.0]]


def test_mask_by_hand():
    """Before the round all is 1; d by client, and what it is held against (p-weighted sums of more bits):

    full:         ( 4, -4,  8, 4)
    eight:        (-4, -4,  0, 8)   against full: only the second and the fourth agree
    two:          ( 4,  4,  4, 0)   against 0.25 full + 0.25 eight = (0, -2, 2, 3): only the third agrees
    """
    d = {"full": [4.0, -4.0, 8.0, 4.0], "eight": [-4.0, -4.0, 0.0, 8.0], "two": [4.0, 4.0, 4.0, 0.0]}
    p, bits = {"full": 0.25, "eight": 0.25, "two": 0.5}, {"full": 32, "eight": 8, "two": 2}
    parts = {n: [[1 + x for x in of]] for n, of in d.items()}
    found = weighted(with_mask, [[1.0, 1.0, 1.0, 1.0]], parts, p, bits)
    # the second and the fourth of full and eight alike; the third of full and two as 1 to 2
    assert torch.allclose(found.aggregate["a.weight"], 1 + torch.tensor([[4.0, -4.0, 8 / 3 + 8 / 3, 6.0]]))
    full, eight, two = (1 + 1 / 2 + 1 / 3 + 1 / 2) / 4, (1 / 2 + 1 / 2) / 4, (2 / 3) / 4
    assert found.weights == pytest.approx({"full": full, "eight": eight, "two": two}, rel=1e-9)


def test_several_tensors_have_weights_of_their_own_and_the_mean_is_recorded():
    """Cosines: (1, 0.8) for one tensor, (0.6, 1) for the other: weights (5/9, 4/9) and (3/8, 5/8)."""
    before = {"a.weight": torch.tensor([[1.0, 0.0]]), "b.bias": torch.tensor([0.0, 2.0])}
    parts = {
        "one": {"a.weight": torch.tensor([[9.0, 0.0]]), "b.bias": torch.tensor([4.0, 3.0])},
        "two": {"a.weight": torch.tensor([[4.0, 3.0]]), "b.bias": torch.tensor([0.0, 1.0])},
    }
    p = {"one": 0.5, "two": 0.5}
    found = Round(average(parts, p), lambda w: {}, weights=p, parts=parts)
    server = with_weights_by_agreement(lambda state, arrived, operators: (state, found))
    _, after = server({}, SimpleNamespace(bits={}), SimpleNamespace(before=lambda: before))
    assert torch.allclose(after.aggregate["a.weight"], torch.tensor([[(45 + 16) / 9, 12 / 9]]))
    assert torch.allclose(after.aggregate["b.bias"], torch.tensor([12 / 8, (9 + 5) / 8]))
    assert after.weights == pytest.approx({"one": (5 / 9 + 3 / 8) / 2, "two": (4 / 9 + 5 / 8) / 2})


@pytest.mark.parametrize("wrap", [with_weights_by_bits, with_mask])
def test_equal_bits_change_nothing_nor_do_bits_change_what_travels_as_floats(wrap):
    p, parts = {"a": 0.75, "b": 0.25}, {"a": [[0.3, 0.1]], "b": [[-0.1, 0.7]]}
    found = weighted(wrap, [[0.1, 0.2]], parts, p, dict.fromkeys(p, 4))
    want = average({n: {"w": torch.tensor(x)} for n, x in parts.items()}, p)["w"]
    assert found.weights == p and torch.equal(found.aggregate["a.weight"], want)
    vectors = {n: x[0] for n, x in parts.items()}
    found = weighted(wrap, [0.1, 0.2], vectors, p, {"a": 2, "b": 32})
    assert found.weights == p and torch.equal(found.aggregate["a.weight"], want[0])


def test_fedexp_counts_each_entry_with_its_own_weights():
    """By entry, the clients' steps and weights: (1, 3, -1) with (1/2, 1/4, 1/4), (-9, 4, -2) with (0, 1/2, 1/2).

    d = (1, 1), and sum_k q_k d_k^2 = (0.5 + 2.25 + 0.25) + (8 + 2) = 13. The recorded means (1/4, 3/8, 3/8) would give 31.75.
    """
    p, bits = {"low": 0.5, "one": 0.25, "two": 0.25}, {"low": 2, "one": 8, "two": 8}
    parts = {"low": [[1.0, -9.0]], "one": [[3.0, 4.0]], "two": [[-1.0, -2.0]]}
    found = weighted(with_mask, [[0.0, 0.0]], parts, p, bits, lambda server: with_fedexp(server, 9.0))
    eta = 13 / (2 * (2 + 1e-3))
    assert found.step_size == pytest.approx(eta, rel=1e-9)
    assert torch.allclose(found.aggregate["a.weight"], torch.tensor([[eta, eta]]))
    assert found.weights == pytest.approx({"low": 1 / 4, "one": 3 / 8, "two": 3 / 8})


def test_weights_are_told_from_vectors():
    """As the model itself tells: what low-bit clients hold in codes."""
    context = tiny_context()
    found = read_payload(rounds_of(context, 0)[0].aggregated, 32, context.task)
    assert {n for n, x in found.items() if is_weight(x)} == weight_names(context.task.converted(4))


@pytest.mark.parametrize("algorithm", AVERAGING)
def test_around_any_algorithm_that_averages(algorithm, monkeypatch):
    """The same uploads with every word: other weights, which sum to 1, for what is trained; everything else stays."""
    found = {}

    def all_words(algorithm, config):
        def server(state, arrived, operators):
            for word in ("algorithm", *WORDS):
                chosen = config.aggregation.model_copy(update={"weights": word})
                part = configured_server(algorithm, config.model_copy(update={"aggregation": chosen}))
                found[word] = part(state, arrived, operators)[1]
            return state, found["algorithm"]

        return server

    monkeypatch.setattr(round, "configured_server", all_words)
    rounds_of(tiny_context(algorithm=algorithm, **{"server.dequantize_epochs": 0}))
    plain = found.pop("algorithm")
    for word, after in found.items():
        assert sum(after.weights.values()) == pytest.approx(1, abs=1e-9) and min(after.weights.values()) >= 0
        assert after.weights.keys() == plain.weights.keys() and after.weights != plain.weights
        assert (after.losses, after.rejected, after.hand_out) == (plain.losses, plain.rejected, plain.hand_out)
        changed = {n for n, w in after.aggregate.items() if not torch.equal(w, plain.aggregate[n])}
        assert after.aggregate.keys() == plain.aggregate.keys() and not any(map(is_statistic, changed))
        assert {n for n, w in after.aggregate.items() if is_weight(w)} <= changed
        assert word == "agreement" or all(is_weight(after.aggregate[n]) for n in changed)


def test_few_bits_count_less_in_a_run():
    """The tiny run's clients have 4, 8 and 32 bits and nearly the same number of images; its lines have the new weights."""
    _, (line,) = rounds_of(tiny_context(algorithm="fed_simclr", **{"aggregation.weights": "bits"}))
    four, eight, full = (line["weights"][f"client-0{i}"] for i in range(3))
    assert four < eight < full and four + eight + full == pytest.approx(1)


def test_the_order_of_replies_does_not_matter():
    torch.manual_seed(0)
    before = {"a.weight": torch.randn(5, 7)}
    parts = {n: {"a.weight": before["a.weight"] + 0.1 * torch.randn(5, 7)} for n in "abcde"}
    weights, bits = (
        dict(zip("abcde", (0.1, 0.3, 0.2, 0.15, 0.25), strict=True)),
        dict(zip("abcde", (2, 4, 4, 8, 32), strict=True)),
    )
    for wrap in (with_weights_by_bits, with_weights_by_agreement, with_mask):
        found = []
        for names in ("abcde", "ecadb"):
            p = {n: parts[n] for n in names}
            w = {n: weights[n] for n in names}
            round_ = Round(average(p, w), lambda w: {}, weights=w, parts=p)
            server = wrap(lambda state, arrived, operators, r=round_: (state, r))
            found.append(server({}, SimpleNamespace(bits=bits), SimpleNamespace(before=lambda: before))[1])
        assert torch.equal(found[0].aggregate["a.weight"], found[1].aggregate["a.weight"])
        assert found[0].weights == found[1].weights


@pytest.mark.parametrize("word", WORDS)
def test_algorithms_that_average_nothing_are_refused(word):
    for name in ("server_only", "central", "untrained", "local_only"):
        with pytest.raises(ConfigError, match=f"{name} averages no clients' models, so aggregation.weights must stay"):
            configured_server(ALGORITHMS[name], tiny(algorithm=name, **{"aggregation.weights": word}))
    for wrap in (with_weights_by_bits, with_weights_by_agreement, with_mask):
        with pytest.raises(ValueError, match="needs an algorithm that averages"):
            wrap(lambda state, arrived, operators: (state, Round({}, lambda w: {})))({}, None, None)


def test_the_servers_optimiser_sees_the_new_aggregate():
    """Half a step of momentum goes half the way to where the new weights lead."""
    half = {"server.optimizer": "momentum", "server.optimizer_lr": 0.5}
    settings = {"algorithm": "fed_simclr", "aggregation.weights": "mask"}
    context = tiny_context(**settings)
    first = read_payload(rounds_of(context, 0)[0].aggregated, 32, context.task)
    there = read_payload(rounds_of(context)[0].aggregated, 32, context.task)
    w = read_payload(rounds_of(tiny_context(**settings, **half))[0].aggregated, 32, context.task)
    for name in w:
        if is_weight(w[name]):
            assert torch.allclose(w[name], first[name] + 0.5 * (there[name] - first[name]), atol=1e-6), name


def test_resumed_bit_for_bit(tmp_path, monkeypatch):
    config = tiny(rounds=3, **{"aggregation.weights": "mask", "server.optimizer": "fedexp"})
    whole = start(config, tmp_path / "whole", say=silent)
    real = RunFolder.save

    def killed(self, checkpoint):
        real(self, checkpoint)
        if checkpoint.rounds_done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            start(config, tmp_path / "parts", say=silent)
    parts = resume(tmp_path / "parts", say=silent)
    assert figures(parts) == figures(whole) and model_bytes(parts.folder) == model_bytes(whole.folder)
