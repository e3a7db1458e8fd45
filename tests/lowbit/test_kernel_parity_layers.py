"""Layers on different kernels, given equal input codes: compiled against plain torch, integer against float convolution.

Compiled kernels and plain torch agree bit for bit, in a layer, in a model and in training.

How differences to exact arithmetic, and between integer and float convolution, are measured: a layer's output is recomputed in
float64 from the same input codes; a code (or a mask bit, or a code of the kept x_hat) may differ only where that value, in units
of the activation's range (h in [0, 1]; a standard deviation for x_hat), lies within 1e-5 of the boundary between the two.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedqssl.federated.task import Task, train_steps
from fedqssl.lowbit import LowBitOptions, LowBitSGD, Precision, layers, to_lowbit
from fedqssl.lowbit.activation import Activation, Sink, grad_carrier, pack_values
from fedqssl.lowbit.functions import convolve, integer_path
from fedqssl.models.resnet import ResNet
from fedqssl.quant.kernels import intconv, native, use
from reference_model import (
    HAT_STEPS,
    as_image,
    check_against_reference,
    images,
    loss_of,
    settle,
    settle_mask,
    unpack_bits,
)

needs_native = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.REASON}")
needs_integers = pytest.mark.skipif(not intconv.available(), reason=f"no integer convolution: {intconv.detail()}")
CLIP = 4.0


def activation(shape: tuple[int, ...], bits: int, seed: int = 0, low: float = 0.0) -> Activation:
    """Random codes of the range [low, low + CLIP] with all views that a layer may read."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.int32)
    if len(shape) == 4:
        codes = codes.contiguous(memory_format=torch.channels_last)
    step = CLIP / (2**bits - 1)
    values = codes.float() * step + low
    like = Activation(grad_carrier(values.shape, values.device), bits, step, None, None, values, low=low, sink=Sink())
    packed = pack_values(values, like.code)
    eight = codes.to(torch.uint8) if bits <= 8 else None
    return Activation(like.grad_carrier, bits, step, packed, eight, values, low=low, sink=like.sink)


def layer_pair(c_in: int, c_out: int, bits: int, **conv: object) -> tuple[nn.Module, layers.LowBitNorm]:
    """A converted convolution and the batch norm with activation behind it."""
    torch.manual_seed(bits + c_out)
    model = nn.Sequential(
        nn.Conv2d(c_in, c_out, bias=False, **conv),
        nn.BatchNorm2d(c_out),
        nn.ReLU(),  # type: ignore[arg-type]
    )
    nn.init.uniform_(model[1].weight, 0.5, 2.5)
    nn.init.normal_(model[1].bias)
    lowbit = to_lowbit(model, Precision.for_bits(bits))
    return lowbit.get_submodule("0"), lowbit.get_submodule("1")


def run(conv: nn.Module, norm: nn.Module, x: Activation, residual: Activation | Tensor | None) -> dict[str, Tensor]:
    out = norm(conv(x), residual)
    mask, hat, _ = out.grad_carrier.grad_fn.saved_tensors
    n, shape = out.grad_carrier.numel(), out.shape
    return {
        "codes": as_image(unpack_bits(out.packed, out.bits, n), shape),
        "mask": as_image(unpack_bits(mask, 1, n), shape),
        "hat": as_image(unpack_bits(hat, norm.options.hat_bits(norm.precision.activation), n), shape),
        "values": out.floats(),
    }


def exact(conv: nn.Module, norm: nn.Module, x: Activation, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """h before clipping and x_hat, in float64, of the same codes."""
    top = 2**conv.weight.bits - 1
    level = 2 * conv.weight.unpacked().double() / top - 1
    value = (x.values.double() - x.low) / x.step  # type: ignore[union-attr]
    value = value.round() * (CLIP / (2**x.bits - 1)) + x.low
    y = F.conv2d(value, level, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
    hat = (y - mean) / (var + norm.eps).sqrt()
    z = hat * norm.weight.detach().double().view(1, -1, 1, 1) + norm.bias.detach().double().view(1, -1, 1, 1)
    return (z if residual is None else z + residual.double()) / CLIP, hat


def assert_explained(got: dict[str, Tensor], h: Tensor, hat: Tensor, bits: int, hat_bits: int) -> None:
    """Every code, mask bit and x_hat code is the exact one's, or at its boundary."""
    top, hat_top, step = 2**bits - 1, 2**hat_bits - 1, HAT_STEPS[hat_bits]
    settle(h, got["codes"], (0.0, 1 / top, top), "codes")
    settle(hat, got["hat"], (-step * hat_top / 2, step, hat_top), "kept x_hat")
    settle_mask((h > 0) & (h < 1), torch.minimum(h.abs(), (h - 1).abs()), got["mask"], "clip mask")


SHAPES = [
    (5, 5, {"kernel_size": 3, "padding": 1}),
    (8, 16, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (12, 33, {"kernel_size": 1, "stride": 2}),
    (12, 12, {"kernel_size": 3, "padding": 1, "groups": 12}),
    (16, 24, {"kernel_size": 3, "groups": 2, "dilation": 2, "padding": 2}),
    (3, 1, {"kernel_size": 3, "padding": 1}),
]
BITS = [1, 2, 4, 5, 8, 12, 16]


@needs_native
@pytest.mark.parametrize("join", ["none", "codes", "floats"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_layer_on_compiled_and_plain_kernels(shape: int, bits: int, join: str) -> None:
    c_in, c_out, conv_args = SHAPES[shape]
    conv, norm = layer_pair(c_in, c_out, bits, **conv_args)
    x = activation((3, c_in, 9, 7), bits)
    with torch.no_grad():
        size = conv(x).shape
    residual: Activation | Tensor | None = None
    if join == "codes":
        residual = activation(tuple(size), bits, seed=1)
    elif join == "floats":
        residual = torch.randn(size, generator=torch.Generator().manual_seed(1))
    added = residual.values if isinstance(residual, Activation) else residual
    h, hat = exact(conv, norm, x, added)
    hat_bits = norm.options.hat_bits(bits)
    found = {}
    for backend in ("native", "torch"):
        with use(backend):
            found[backend] = run(conv, norm, x, residual)
        assert_explained(found[backend], h, hat, bits, hat_bits)
        step = torch.tensor(CLIP / (2**bits - 1))
        assert torch.equal(found[backend]["values"], found[backend]["codes"].float() * step)
    assert all(torch.equal(x, found["torch"][part]) for part, x in found["native"].items())


@needs_native
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 1031])
@pytest.mark.parametrize("channels", [1, 5, 8, 12, 64])
def test_same_floats_make_the_same_codes(rows: int, channels: int) -> None:
    """Given equal y, mean and variance, batch norm in eval mode rounds alike on both kernels: bit for bit."""
    generator = torch.Generator().manual_seed(rows)
    y = 3 * torch.randn(rows, channels, generator=generator)
    model = nn.Sequential(nn.BatchNorm1d(channels), nn.ReLU())
    nn.init.uniform_(model[0].weight, 0.5, 2.0, generator=generator)
    nn.init.uniform_(model[0].running_var, 0.5, 2.0, generator=generator)
    for bits in (1, 4, 5, 12):
        norm = to_lowbit(model, Precision.for_bits(bits)).eval().get_submodule("0")
        kept = []
        for backend in ("native", "torch"):
            with use(backend):
                out = norm(y.clone().requires_grad_())
            mask, hat, _ = out.grad_carrier.grad_fn.saved_tensors
            kept.append((out.packed, mask, hat, out.floats()))
        assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))


INTEGER_CASES = [
    (bits, x_bits, shape)
    for bits, x_bits in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (1, 8), (4, 8), (6, 8), (8, 8), (8, 3)]
    for shape in range(len(SHAPES))
    if bits < 8 or "groups" not in SHAPES[shape][2]
]


@needs_integers
@pytest.mark.parametrize(("bits", "x_bits", "shape"), INTEGER_CASES)
def test_integer_convolution_is_exact(bits: int, x_bits: int, shape: int) -> None:
    """The sum of products of codes is an exact integer; only its scale is rounded to float32 (and at most twice)."""
    c_in, c_out, conv_args = SHAPES[shape]
    conv, _ = layer_pair(c_in, c_out, bits, **conv_args)
    x = activation((3, c_in, 9, 7), x_bits)
    x.codes[0].fill_(2**x_bits - 1)  # type: ignore[index]
    x.values[0].fill_(CLIP)  # type: ignore[index]
    odd = 2 * conv.weight.unpacked().double() - (2**bits - 1)
    sums = F.conv2d(x.codes.double(), odd, None, conv.stride, conv.padding, conv.dilation, conv.groups)  # type: ignore[union-attr]
    want = sums * (CLIP / (2**x_bits - 1) / (2**bits - 1))
    assert integer_path(x_bits, conv)
    got = convolve(x, conv)
    assert got.shape == want.shape and got.is_contiguous(memory_format=torch.channels_last)
    assert bool(((got.double() - want).abs() <= 2**-22 * want.abs()).all())


@needs_integers
@pytest.mark.parametrize("bits", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_layer_with_integer_and_float_convolution(shape: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    c_in, c_out, conv_args = SHAPES[shape]
    x = activation((3, c_in, 9, 7), bits)
    found = []
    for integers in (True, False):
        if not integers:
            monkeypatch.setattr(intconv, "available", lambda: False)
        with use("auto" if integers else "torch"):
            conv, norm = layer_pair(c_in, c_out, bits, **conv_args)
            assert integer_path(bits, conv) == (integers and (bits < 8 or conv.groups == 1))
            here = x if integers else Activation(x.grad_carrier, bits, x.step, x.packed, None, x.values, sink=Sink())
            found.append(run(conv, norm, here, None))
        h, hat = exact(conv, norm, x, None)
        assert_explained(found[-1], h, hat, bits, norm.options.hat_bits(bits))
    assert float((found[0]["codes"] != found[1]["codes"]).float().mean()) < 0.01


def output_and_gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    y = model(x)
    loss_of(y).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.numel() and p.grad is not None}
    for name, module in model.named_modules():
        if getattr(module, "gradient", None) is not None:
            found[name] = module.gradient.unpack()
    return {"output": y.detach(), **found}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Root mean square, over the output and all gradients, of their relative distances."""
    assert a.keys() == b.keys()
    apart = [float((a[k] - b[k]).square().sum() / b[k].square().sum().clamp(min=1e-12)) for k in a]
    return (sum(apart) / len(apart)) ** 0.5


def small_resnet(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return ResNet((1, 1), width=12, num_classes=7)


def assert_alike_in_most_seeds(run_both: Callable[[nn.Module, Tensor], list[dict[str, Tensor]]]) -> None:
    """The median of three models is within 1%.

    A whole model is chaotic: one code at its boundary, or one gradient at the edge of a float key, may be rounded the other way
    and changes all that follows by up to a cell. So single models may be further apart; layers are compared strictly above,
    and each backend by itself strictly with the reference (below, and in test_gradients).
    """
    apart = sorted(distance(*run_both(small_resnet(seed), images(12, 3, 9, seed))) for seed in range(3))
    assert apart[1] <= 3e-2 and apart[2] <= 0.5, f"distances {apart}"


@needs_native
@pytest.mark.parametrize("weights", ["level", "value"])
@pytest.mark.parametrize("bits", [2, 4, 8, 12])
def test_resnet_on_compiled_and_plain_kernels(bits: int, weights: str) -> None:
    found = []
    for backend in ("native", "torch"):
        with use(backend):
            lowbit = to_lowbit(small_resnet(0), Precision.for_bits(bits), LowBitOptions(weights=weights))  # type: ignore[arg-type]
            found.append(output_and_gradients(lowbit, images(12, 3, 9)))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(x, found[1][name]) for name, x in found[0].items())


@needs_native
@pytest.mark.parametrize("bits", [1, 2, 3, 6, 7, 8, 12, 16])
def test_training_on_compiled_and_plain_kernels(bits: int) -> None:
    """Two steps: forward and backward pass, stochastic rounding, statistics. Every tensor of the model is the same."""
    task = Task("small_cnn", 8, 3, "simclr", 0.5, 8, 0, LowBitOptions())
    pictures = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    found = []
    for backend in ("native", "torch"):
        with use(backend):
            model = task.converted(bits)
            opt = LowBitSGD(model, 0.3, seed=1)
            losses = train_steps(model, opt, pictures, task, torch.Generator().manual_seed(3), 2)
        found.append((losses, model.state_dict()))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(x, found[1][1][name]) for name, x in found[0][1].items())


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_native)])
def test_resnet_against_the_reference(backend: str) -> None:
    model = small_resnet(0)
    convs = {n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    with use(backend):
        lowbit = to_lowbit(model, Precision.for_bits(4))
        check_against_reference(model, lowbit, images(12, 3, 9), 4, absorbed=convs, ranged={"classifier"})


@needs_integers
@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_resnet_with_integer_and_float_convolution(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_both(model: nn.Module, x: Tensor) -> list[dict[str, Tensor]]:
        found = [output_and_gradients(to_lowbit(model, Precision.for_bits(bits)), x)]
        with monkeypatch.context() as patch:
            patch.setattr(intconv, "available", lambda: False)
            found.append(output_and_gradients(to_lowbit(model, Precision.for_bits(bits)), x))
        return found

    assert_alike_in_most_seeds(run_both)
