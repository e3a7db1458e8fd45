"""The server's equations, recomputed another way."""

import math

import pytest
import torch

from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.server import average, dequantize, requantize, softmax_weights
from fedqssl.federated.server.aggregate import PART
from fedqssl.federated.server.plausible import spread
from fedqssl.federated.state import read_state, write_state
from fedqssl.federated.task import Task, batches, train_epoch, train_steps
from fedqssl.lowbit import LowBitOptions, LowBitSGD, load_bytes, to_bytes
from fedqssl.lowbit.container import read_header

TASK = Task("small_cnn", 4, 3, "simclr", 0.5, 8, seed=0, options=LowBitOptions())


def images(count: int = 20) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_weights_are_softmax_of_minus_the_loss():
    losses = {"b": 2.0, "a": 1.0, "c": 4.5}
    for temperature in (1.0, 0.1, 7.0):
        total = sum(math.exp(-x / temperature) for x in losses.values())
        got = softmax_weights(losses, temperature)
        assert list(got) == ["a", "b", "c"]
        assert all(abs(got[n] - math.exp(-x / temperature) / total) < 1e-12 for n, x in losses.items())
    assert softmax_weights({"a": 5000.0, "b": 5001.0})["a"] > 0.7  # no underflow


def test_weights_refuse_nothing_and_not_finite():
    with pytest.raises(ValueError, match="no client"):
        softmax_weights({})
    with pytest.raises(ValueError, match="car-17"):
        softmax_weights({"car-17": float("nan"), "a": 1.0})


def test_average_is_weighted_over_every_tensor_by_name_and_in_any_order():
    draw = torch.Generator().manual_seed(1)
    states = {n: {"w": torch.randn(3, 2, generator=draw), "bn": torch.randn(4, generator=draw)} for n in "cab"}
    weights = {"a": 0.5, "b": 0.2, "c": 0.3}
    got = average(states, weights)
    for key in ("w", "bn"):
        want = sum(states[n][key].double() * weights[n] for n in "abc")
        assert torch.allclose(got[key].double(), want, atol=1e-6)
    again = average({n: states[n] for n in "bca"}, weights)
    assert all(torch.equal(got[k], again[k]) for k in got)


@pytest.mark.parametrize("shape", [(3, PART), (PART + 1,), (PART,), ()])
def test_tensors_of_any_size_are_averaged_in_one_order(shape):
    draw = torch.Generator().manual_seed(2)
    states = {n: {"w": torch.randn(shape, generator=draw)} for n in "abc"}
    states["b"]["w"] = states["b"]["w"].mT.contiguous().mT if len(shape) > 1 else states["b"]["w"]
    want = torch.zeros(shape, dtype=torch.float64)
    for n, p in (("a", 0.5), ("b", 0.2), ("c", 0.3)):
        want += states[n]["w"].double() * p
    assert torch.equal(average(states, {"a": 0.5, "b": 0.2, "c": 0.3})["w"], want.float())


def test_a_tensor_that_some_clients_lack_is_averaged_over_the_others():
    got = average(
        {"a": {"x": torch.ones(2)}, "b": {}, "c": {"x": torch.full((2,), 4.0)}}, {"a": 0.2, "b": 0.5, "c": 0.3}
    )
    assert torch.allclose(got["x"], torch.full((2,), (0.2 * 1 + 0.3 * 4) / 0.5))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.1, 0.3), (5.0, 1e-3), (3e4, 0.25), (0.25, 0.0)])
def test_spread_is_the_standard_deviation(mean, std):
    x = torch.randn(4096, generator=torch.Generator().manual_seed(3)) * std + mean
    assert spread(x) == pytest.approx(float(x.double().std(correction=0)), rel=1e-3)


@pytest.mark.parametrize("bits", [2, 4, 12, 32])
def test_dequantize_fine_tunes_what_the_codes_stand_for_and_returns_the_last_epochs_loss(bits):
    payload = to_bytes(TASK.converted(bits))
    steps = 2 * TASK.steps(len(images()))
    state, loss = dequantize(payload, bits, images(), TASK, round_number=3, steps=steps, lr=0.1)
    received = TASK.converted(bits)
    load_bytes(received, payload)
    full = TASK.converted(32)
    write_state(full, read_state(received))
    opt, draws = LowBitSGD(full, 0.1), generator(0, "de-quantization", 3)
    losses = [train_epoch(full, opt, images(), TASK, draws) for _ in range(2)]
    assert loss == losses[-1] != losses[0]
    want = read_state(full)
    assert want and all(torch.equal(state[k], want[k]) for k in want)


def test_without_steps_the_state_is_what_came_and_the_loss_is_measured():
    payload = to_bytes(TASK.converted(4))
    state, loss = dequantize(payload, 4, images(), TASK, 0, steps=0, lr=0.1)
    received = TASK.converted(4)
    load_bytes(received, payload)
    assert all(torch.equal(state[k], v) for k, v in read_state(received).items()) and math.isfinite(loss)


def test_all_clients_of_a_round_see_the_same_batches_and_views():
    payload = to_bytes(TASK.converted(4))
    results = [dequantize(payload, 4, images(), TASK, 5, 1, 0.1) for _ in range(2)]
    assert results[0][1] == results[1][1]
    assert dequantize(payload, 4, images(), TASK, 6, 1, 0.1)[1] != results[0][1]


@pytest.mark.parametrize("bits", [2, 4, 8, 12, 32])
@pytest.mark.parametrize("epochs", [0, 1])
def test_requantized_models_are_in_their_bits(bits, epochs):
    state = read_state(TASK.converted(32))
    payload = requantize(state, bits, images(), TASK, 0, epochs, 0.1)
    assert read_header(payload)["bits"] == str(bits)
    model = TASK.converted(bits)
    load_bytes(model, payload)
    if bits == 32:
        assert all(torch.allclose(v, state[k], rtol=1e-3) for k, v in read_state(model).items())


@pytest.mark.parametrize("start", ["average", "codes"])
@pytest.mark.parametrize("scale", ["grow", "round"])
def test_requantize_fine_tunes_with_float_shadow_weights(start, scale):
    """Rule ``latent``: small steps add up in floats, which start at the average, and only the codes are sent."""
    state = read_state(TASK.converted(32))
    sent = requantize(state, 4, images(), TASK, round_number=3, epochs=2, lr=0.1, start=start, scale=scale)
    by_rule = {}
    for rule in ("latent", "stored"):
        model = TASK.converted(4)
        write_state(model, state)
        opt = LowBitSGD(model, 0.1, rule=rule, scale=scale, seed=derived_seed(0, "re-quantization rounding", 4, 3))
        if rule == "latent" and start == "average":
            for name, weight in opt.weights.items():
                opt.state[weight.anchor]["latent"] = state[name].clone()
        draws = generator(0, "re-quantization", 3)
        for _ in range(2):
            train_epoch(model, opt, images(), TASK, draws)
        by_rule[rule] = to_bytes(model)
    assert sent == by_rule["latent"] != by_rule["stored"]
    other = {"start": "codes" if start == "average" else "average", "scale": scale}
    assert sent != requantize(state, 4, images(), TASK, 3, 2, 0.1, **other)


@pytest.mark.parametrize(("steps", "parts"), [(1, [1]), (2, [2]), (5, [1, 2, 2]), (6, [2, 2, 2])])
def test_steps_go_on_from_epoch_to_epoch_and_losses_are_of_the_last_epochs_worth(steps, parts):
    """20 images in batches of 8 make epochs of two steps; the reference takes them one at a time."""
    model, reference = TASK.converted(32), TASK.converted(32)
    ended = []
    losses = train_steps(model, LowBitSGD(model, 0.1), images(), TASK, generator(0, "x"), steps, done=ended.append)
    opt, draws, each, seen = LowBitSGD(reference, 0.1), generator(0, "x"), [], []
    reference.train()
    while len(each) < steps:
        order = torch.randperm(20, generator=draws)
        for index in order[:16].view(2, 8)[: steps - len(each)]:
            loss = TASK.loss(reference(TASK.two_views(images()[index], draws)))
            loss.backward()
            opt.step()
            each.append(loss.item())
            seen += index.tolist()
    assert all(len(set(seen[i : i + 16])) == len(seen[i : i + 16]) for i in range(0, len(seen), 16))
    assert to_bytes(model) == to_bytes(reference)
    cuts = [each[sum(parts[:i]) : sum(parts[: i + 1])] for i in range(len(parts))]
    assert losses == pytest.approx([sum(part) / len(part) for part in cuts], rel=1e-12)
    assert ended == [*range(2, steps, 2), steps]


def test_one_epoch_is_full_batches_or_one_small_one():
    draws = torch.Generator().manual_seed(0)
    assert [len(b) for b in batches(20, 8, draws)] == [8, 8]
    assert [len(b) for b in batches(5, 8, draws)] == [5]
    assert sorted(torch.cat(batches(16, 8, draws)).tolist()) == list(range(16))


def test_seeds_derive_from_every_word():
    seeds = {derived_seed(s, p, r) for s in (0, 1) for p in ("a", "b") for r in range(3)}
    assert len(seeds) == 12 and all(0 <= s < 2**63 for s in seeds)
    assert derived_seed(0, "a", 11) != derived_seed(0, "a1", 1)
