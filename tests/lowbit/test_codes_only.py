"""Between steps a client holds packed codes and nothing else of its weights (PAPER-TO-CODE, section 3)."""

import gc

import pytest
import torch
from torch import nn

from fedqssl.lowbit import LowBitOptions, LowBitSGD, LowBitWeight, Precision, to_lowbit
from fedqssl.lowbit.layers import InputCodes


def small_net() -> nn.Module:
    """Layer sizes that no other tensor has: 7*3*3*3, 11*7*3*3, 13*11."""
    return nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1, bias=False),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Conv2d(7, 11, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(11),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(11, 13),
    )


def train_step(model: nn.Module, opt: torch.optim.Optimizer, generator: torch.Generator) -> float:
    x = torch.rand(6, 3, 8, 8, generator=generator)
    loss = (model(x) - 1).square().mean()
    loss.backward()
    opt.step()
    return float(loss.detach())


def float_copies(sizes: set[int]) -> list[torch.Tensor]:
    """Live floating tensors that have as many stored elements as a layer has weights."""
    gc.collect()
    found = []
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter) and thing.is_floating_point():
            stored = thing.untyped_storage().nbytes() // thing.element_size()
            if thing.numel() in sizes and stored in sizes:
                found.append(thing)
    return found


@pytest.mark.parametrize("weights", ["level", "value", "literal"])
@pytest.mark.parametrize("bits", [1, 4, 12])
def test_at_every_step_a_layer_holds_at_most_2_to_the_s_values_and_no_float_copy(bits, weights):
    torch.manual_seed(0)
    model = to_lowbit(small_net(), Precision.for_bits(bits), LowBitOptions(weights=weights))
    opt = LowBitSGD(model, lr=0.2)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LowBitWeight)}
    sizes = {m.shape.numel() for m in layers.values()}
    assert len(layers) == 3
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        train_step(model, opt, generator)
        for layer in layers.values():
            assert layer.effective().unique().numel() <= 2**bits
            assert layer.parameters_of_codes().unique().numel() <= 2**bits
            assert layer.codes.numel() == (layer.shape.numel() * bits + 7) // 8
        held = list(model.state_dict().values()) + [v for s in opt.state.values() for v in s.values()]
        assert not [t for t in held if torch.is_tensor(t) and t.is_floating_point() and t.numel() in sizes]
        assert float_copies(sizes) == []


def test_the_walk_finds_the_shadow_copy_of_the_latent_rule():
    torch.manual_seed(0)
    model = to_lowbit(small_net(), Precision.for_bits(4))
    opt = LowBitSGD(model, lr=0.2, rule="latent")
    train_step(model, opt, torch.Generator().manual_seed(1))
    sizes = {m.shape.numel() for m in model.modules() if isinstance(m, LowBitWeight)}
    assert len(float_copies(sizes)) == 3
    assert opt.state_bytes() == 4 * sum(sizes)


def test_gradients_wait_for_the_step_as_packed_codes_of_two_bits_more():
    torch.manual_seed(0)
    model = to_lowbit(small_net(), Precision.for_bits(4))
    (model(torch.rand(6, 3, 8, 8)) - 1).square().mean().backward()
    for layer in model.modules():
        if isinstance(layer, LowBitWeight):
            gradient = layer.gradient
            assert gradient is not None and gradient.bits == 6
            assert gradient.packed.numel() == (layer.shape.numel() * 6 + 7) // 8
            assert gradient.unpack().unique().numel() <= 64


def test_what_is_saved_for_backward_is_packed_codes():
    torch.manual_seed(0)
    model = to_lowbit(small_net(), Precision.for_bits(4))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = model(torch.rand(6, 3, 8, 8))
    large = [t for t in saved if t.numel() > 16]
    assert large and all(t.dtype == torch.uint8 for t in large)
    first, second = 6 * 7 * 64, 6 * 11 * 16  # activations of the two blocks
    image = 6 * 3 * 64
    expected = image + (first + second) * (4 + 1 + 3) // 8  # codes, clip mask, bn_saved_bits = s - 1
    tail = (6 * 11 * 4 + 7) // 8 + (6 * 11 + 7) // 8  # pooled features: codes and clip mask
    conv2 = second * 4 // 8  # the last activation's codes are read by the pooling, not kept by a convolution
    assert sum(t.numel() for t in saved if t.dtype == torch.uint8) == expected + tail - conv2
    assert out.grad_fn is not None


def test_the_input_is_packed_for_the_backward_pass_alone():
    model, x = to_lowbit(small_net(), Precision.for_bits(4)), torch.rand(2, 3, 8, 8)
    codes = next(module for module in model.modules() if isinstance(module, InputCodes))
    recorded = codes(x)
    with torch.no_grad():
        seen = codes(x)
    assert recorded.packed is not None and seen.packed is None
    assert torch.equal(seen.codes, recorded.codes) and torch.equal(seen.for_backward(), recorded.packed)
