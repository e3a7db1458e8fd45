"""The ledger's formulas: numbers worked out by hand, and the bytes that `fedqssl bench memory` sees."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedqssl.cost.bitwidth import wire
from fedqssl.cost.formulas import ObjectiveCost, objective_cost, optimizer_bytes, step_memory, step_operations
from fedqssl.cost.trace import WeightTensor, trace
from fedqssl.lowbit import LowBitOptions, LowBitSGD, LowBitWeight, Precision, to_bytes, to_lowbit
from fedqssl.models import resnet18
from fedqssl.ssl.objectives import get_objective
from fedqssl.ssl.simclr import nt_xent
from fedqssl.studies.bench.memory import saved_bytes
from fedqssl.studies.bench.peers import TrainingStep, Variant, build, training_step

IMAGE = (1, 4, 4)


def two_layers(bits: int) -> nn.Module:
    """Convolution 1 -> 2 channels on 4x4 images (18 weights, 288 products), linear 32 -> 5 (160 weights and products)."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)
    )
    return to_lowbit(model, Precision.for_bits(bits))


def test_two_layers_at_4_and_6_bits_by_hand():
    ops = step_operations(trace(two_layers(4), IMAGE), views=16)
    # forward: 288 products of 4-bit weights by 8-bit pixels, 160 of 4-bit weights by 4-bit activations
    assert ops.forward == 16 * (288 * 4 * 8 + 160 * 4 * 4) == 188_416
    # backward in 6 bits: weights of both layers; the input's gradient of the second alone
    assert ops.backward == 16 * (288 * 6 * 8 + 160 * 6 * 4 + 160 * 6 * 4) == 344_064
    assert ops.total == 188_416 + 344_064


def test_a_gradient_with_no_more_entries_than_centres_counts_32_bits():
    ops = step_operations(trace(two_layers(4), IMAGE), views=12)  # 12 * 5 = 60 output gradients, 64 centres
    assert ops.backward == 12 * (288 * 6 * 8 + 160 * 32 * (4 + 4))


def test_full_precision_by_hand():
    ops = step_operations(trace(two_layers(32), IMAGE), views=16)
    assert ops.forward == 16 * 448 * 32 * 32
    assert ops.backward == 16 * (288 + 2 * 160) * 32 * 32


def test_memory_of_two_layers_by_hand():
    memory = step_memory(trace(two_layers(4), IMAGE), views=16)
    pixels, mask, x_hat, mask_again, activations = 16 * 16, 32 * 16 // 8, 32 * 16 * 3 // 8, 32 * 16 // 8, 32 * 16 // 2
    assert memory.activations == pixels + mask + x_hat + mask_again + activations == 832
    # codes 9 + 80, two scales, batch norm and bias 9 floats, statistics 4 floats, a counter, an activation range
    assert memory.weights == 9 + 80 + 2 * 4 + 9 * 4 + 4 * 4 + 8 + 2 * 4 == 165
    # 18 gradients in 6 bits with 18 centres, 160 with 64 centres, 9 floats
    assert memory.gradients == 14 + 4 * 18 + 120 + 4 * 64 + 9 * 4 == 498
    assert memory.optimizer == 0 and memory.total == 832 + 165 + 498
    assert memory.peak == memory.total + 3 * 4 * 32 * 16


def test_the_hooks_leave_the_model_alone():
    model = two_layers(4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trace(model, IMAGE)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def formula(model: nn.Module, images: int, loss=nt_xent) -> int:
    found = trace(model)
    return step_memory(found, 2 * images, objective=objective_cost(loss, 2 * images, found.outputs)).activations


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16, 32])
def test_saved_bytes_are_those_of_bench_memory(bits):
    step = training_step(Variant("fp32" if bits == 32 else "fedqssl", bits), width=8, images=6)
    assert formula(step.model, 6) == pytest.approx(saved_bytes(step), rel=0.01)  # issue 4 asks for 0.05


def test_the_recorded_memory_bench():
    path = Path(__file__).parents[2] / "docs" / "bench" / "memory.json"
    record = json.loads(path.read_text())
    width, images = record["settings"]["width"], record["settings"]["images"]
    for row in record["results"]:
        model, _ = build(Variant(row["variant"], row["bits"]), width)
        assert formula(model, images) == pytest.approx(row["saved_bytes"], rel=0.05), row


@pytest.mark.parametrize(
    "options",
    [
        LowBitOptions(weights="value"),
        LowBitOptions(activation_quantizer="tanh"),
        LowBitOptions(skip=("0.conv1", "0.bn1", "*.layers.3.*")),
    ],
)
@pytest.mark.parametrize("bits", [4, 32])
def test_saved_bytes_of_other_readings(options, bits):
    model = to_lowbit(nn.Sequential(resnet18(width=8)).train(), Precision.for_bits(bits), options)
    step = TrainingStep(model, None, torch.rand(8, 3, 32, 32))
    assert formula(model, 4) == pytest.approx(saved_bytes(step), rel=0.05)


def test_saved_bytes_with_max_pooling():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    for bits in (4, 32):
        model = to_lowbit(nn.Sequential(*layers).train(), Precision.for_bits(bits))
        step = TrainingStep(model, None, torch.rand(8, 3, 32, 32))
        assert formula(model, 4) == pytest.approx(saved_bytes(step), rel=0.05)


def test_nt_xent_by_hand():
    n, d = 8, 16  # 2N rows
    found = objective_cost(nt_xent, n, d)
    assert found.macs == 3 * n * n * d  # z z^T forward, g z and g^T z backward
    assert found.saved_bytes == 4 * (
        n * n + 2 * n * d + 3 * n
    )  # similarities, z and unit z, norms, their clamp, logsumexp
    assert objective_cost(lambda z: get_objective("simsiam").loss(z, 0.5), 8, 16).macs == 0
    assert objective_cost(nt_xent, 2**14, 128).macs == 3 * 2**28 * 128  # takes no memory


def test_the_objective_counts_at_32_bits():
    assert step_operations(trace(two_layers(4), IMAGE), 2, ObjectiveCost(10, 0)).objective == 10 * 1024


@pytest.mark.parametrize("rule", ["stored", "residual", "latent"])
def test_optimizer_state_is_state_bytes(rule):
    model = two_layers(4).train()
    opt = LowBitSGD(model, 0.1, rule=rule)
    model(torch.rand(16, *IMAGE)).square().sum().backward()
    opt.step()
    weights = trace(model, IMAGE).weights
    assert [w.count for w in weights] == [18, 160]
    assert sum(optimizer_bytes(w, rule) for w in weights) == opt.state_bytes()


def test_the_proximal_copy_is_in_the_clients_bits():
    weight = WeightTensor("w", 1000, 4, 6)
    assert optimizer_bytes(weight, "stored", "proximal") == optimizer_bytes(weight, "stored", "update") == 500 + 4
    assert optimizer_bytes(weight, "latent", "proximal") == 4000 + 500 + 4


def test_halving_the_bits_halves_the_packed_part():
    found = {b: wire(to_lowbit(resnet18(width=8), Precision.for_bits(b))) for b in (2, 4, 8, 16, 32)}
    for b in (2, 4, 8, 16):
        assert 2 * found[b].packed == found[2 * b].packed
        assert found[b].floats + found[b].frame < 0.2 * found[32].total


@pytest.mark.parametrize("bits", [4, 32])
def test_the_wire_is_a_real_buffer(bits):
    model = two_layers(bits)
    found = wire(model)
    assert found.total == len(to_bytes(model)) <= found.most
    codes = [m.codes.numel() for m in model.modules() if isinstance(m, LowBitWeight)]
    assert found.packed == (sum(codes) if codes else 4 * 178)
