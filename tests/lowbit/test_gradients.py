"""Forward and backward of low-bit layers against the slow reference of ``reference_model.py`` (how strict: see there)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedqssl.lowbit import LowBitOptions, Precision, buffer_pool, to_lowbit
from fedqssl.lowbit.fp32_layers import ClippedReLU
from fedqssl.quant.kernels import native, use
from reference_model import (
    assert_close,
    check_against_reference,
    exact_centres,
    images,
    key16_quantiles,
    loss_of,
    same_key,
    watching,
)

BITS = [2, 4, 8, 12]
needs_native = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.REASON}")


class ConvNet(nn.Module):
    """Stem and one convolution under test, each with batch norm and ReLU."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, padding: int, groups: int, bias: bool = False):
        super().__init__()
        self.stem = nn.Conv2d(3, c_in, 3, padding=1, bias=False)
        self.bn0, self.relu0 = nn.BatchNorm2d(c_in), nn.ReLU()
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, groups=groups, bias=bias)
        self.bn1, self.relu1 = nn.BatchNorm2d(c_out), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu1(self.bn1(self.conv(self.relu0(self.bn0(self.stem(x))))))


class NormlessNet(nn.Module):
    """No batch norm anywhere: conv (bias), ReLU, strided conv that ends the model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu = nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()
        self.b = nn.Conv2d(5, 12, 3, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.relu(4 * self.a(x)))


class Mlp(nn.Module):
    """A projector: linear, batch norm, ReLU, linear with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.relu = nn.Linear(13, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()
        self.b = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.relu(self.bn(self.a(x))))


class Residual(nn.Module):
    """Stem, a block with an identity or a projection shortcut, global average pool, linear classifier."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.stem, self.bn0, self.relu0 = nn.Conv2d(3, c_in, 3, padding=1, bias=False), nn.BatchNorm2d(c_in), nn.ReLU()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(c_out), nn.ReLU()
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(c_out), nn.ReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))
        self.fc = nn.Linear(c_out, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu0(self.bn0(self.stem(x)))
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        y = self.relu2(y + self.shortcut(x))
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))


class ThreeReaders(nn.Module):
    """One activation read by three convolutions, by a residual join, and as floats by the output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn0, self.relu0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.a, self.bna = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.bnb = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.c, self.bnc = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu0(self.bn0(self.stem(x)))
        z = self.relu1(self.bnc(self.c(x)) + x)  # the join's gradient arrives after those of a and b
        y = self.relu2(self.bna(self.a(x)) + self.bnb(self.b(x)))
        return torch.cat([y, z, x], 1)


class TwoHeads(nn.Module):
    """Two linear layers that read the same codes."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.bn, self.relu = nn.Linear(13, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()
        self.a, self.b = nn.Linear(24, 7), nn.Linear(24, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.trunk(x)))
        return torch.cat([self.a(x), self.b(x)], 1)


RESIDUAL_ABSORBED = {"stem", "conv1", "conv2", "shortcut.0"}
PRECISE = {"level": LowBitOptions(), "value": LowBitOptions(weights="value")}


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights large enough to use the compander's curve, batch norms that clip on both sides."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=0.4)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 3.0)
            nn.init.normal_(module.bias, std=0.5)
    return model


def convert(model: nn.Module, bits: int, weights: str = "level", **rest: object) -> nn.Module:
    return to_lowbit(model, Precision.for_bits(bits), PRECISE[weights], **rest)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Every gradient of a converted model by name."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and p.numel()}
    for name, module in model.named_modules():
        if getattr(module, "gradient", None) is not None:
            found[name] = module.gradient.unpack()
    return found


def assert_same_for_channels_last(model: nn.Module, lowbit: nn.Module, x: Tensor) -> None:
    """``lowbit`` has gradients from a contiguous x; from a channels_last one they are the same to the last bit."""
    options = next(m.options for m in lowbit.modules() if hasattr(m, "options"))
    twin = to_lowbit(model, Precision.for_bits(lowbit.stem.weight.bits), options)
    loss_of(twin(x.contiguous(memory_format=torch.channels_last))).backward()
    a, b = gradients(lowbit), gradients(twin)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


CONVS = {
    "3x3": (8, 8, 3, 1, 1, 1),
    "3x3 odd, stride 2": (5, 12, 3, 2, 1, 1),
    "3x3 no padding": (12, 16, 3, 1, 0, 1),
    "grouped": (12, 10, 3, 1, 0, 2),
    "grouped, stride 2": (8, 24, 3, 2, 1, 2),
    "depthwise": (8, 8, 3, 1, 1, 8),
    "depthwise odd, stride 2": (5, 5, 3, 2, 1, 5),
    "1x1 stride 2": (5, 8, 1, 2, 0, 1),
    "1x1 grouped stride 2": (12, 8, 1, 2, 0, 2),
    "even kernel": (8, 5, 2, 2, 1, 1),
}


@pytest.mark.parametrize("weights", ["level", "value"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("case", CONVS)
def test_convolution(case: str, bits: int, weights: str) -> None:
    model = randomize(ConvNet(*CONVS[case]))
    x = images(4, 3, 7)
    lowbit = convert(model, bits, weights)
    check_against_reference(model, lowbit, x, bits, absorbed={"stem", "conv"}, weights=weights)
    if weights == "level":
        assert_same_for_channels_last(model, lowbit, x)


@pytest.mark.parametrize("channels", [12, 16])
def test_twelve_bits_with_more_entries_than_centres(channels: int) -> None:
    """14-bit gradients have 16,384 centres: smaller tensors than this one would be kept exactly."""
    model = randomize(ConvNet(4, channels, 3, 1, 1, 1))
    x = images(6, 3, 16)
    assert 6 * channels * 256 > 2**14
    check_against_reference(model, convert(model, 12), x, 12, absorbed={"stem", "conv"})


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("weights", ["level", "value"])
def test_without_batch_norm(bits: int, weights: str) -> None:
    model = randomize(NormlessNet())
    check_against_reference(
        model, convert(model, bits, weights), images(4, 3, 7), bits, absorbed=set(), weights=weights
    )


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("weights", ["level", "value"])
def test_linear(bits: int, weights: str) -> None:
    model = randomize(Mlp())
    check_against_reference(
        model, convert(model, bits, weights), images(50, 13, 0), bits, absorbed={"a"}, weights=weights
    )


@pytest.mark.parametrize(
    ("backend", "weights"),
    [
        ("torch", "level"),
        pytest.param("native", "level", marks=needs_native),
        pytest.param("native", "value", marks=needs_native),
    ],
)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("block", ["identity", "identity odd", "projection", "projection odd"])
def test_residual_block(block: str, bits: int, weights: str, backend: str) -> None:
    sizes = {"identity": (8, 8, 1), "identity odd": (5, 5, 1), "projection": (8, 16, 2), "projection odd": (5, 12, 2)}
    model = randomize(Residual(*sizes[block]))
    x = images(4, 3, 7)
    reading = {"absorbed": RESIDUAL_ABSORBED, "ranged": {"fc"}, "weights": weights}
    with use(backend):
        lowbit = convert(model, bits, weights)
        check_against_reference(model, lowbit, x, bits, **reading)
        assert_same_for_channels_last(model, lowbit, x)


@pytest.mark.parametrize("options", [{"activation_clip": 1.5}, {"bn_saved_bits": 8}, {"bn_saved_bits": 1}])
def test_options_of_the_activation(options: dict[str, float]) -> None:
    model = randomize(Residual(8, 16, 2))
    lowbit = to_lowbit(model, Precision.for_bits(4), LowBitOptions(**options))  # type: ignore[arg-type]
    reading = {"clip": options.get("activation_clip", 4.0), "hat_bits": options.get("bn_saved_bits")}
    check_against_reference(model, lowbit, images(4, 3, 7), 4, absorbed=RESIDUAL_ABSORBED, ranged={"fc"}, **reading)


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_the_nearest_levels(bits: int) -> None:
    """What the reference reads from a layer: ``l = 2k/(2^s-1) - 1`` nearest to ``tanh(x)/m``, ``m = max|tanh(x)|``."""
    model = randomize(ConvNet(8, 8, 3, 1, 1, 1))
    weight = convert(model, bits).conv.weight
    y = model.conv.weight.detach().double().tanh()
    assert float(weight.scale) == float(y.abs().max().float())
    level = 2 * weight.unpacked().double() / (2**bits - 1) - 1
    assert float((y / y.abs().max() - level).abs().max()) <= 1 / (2**bits - 1) + 1e-6


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gradients_by_means_of_cells(bits: int, backend: str) -> None:
    """In every place where a gradient is quantized: behind a batch norm, of a linear layer, of weights."""
    model = randomize(Residual(8, 16, 2))
    with use(backend):
        lowbit = to_lowbit(model, Precision.for_bits(bits), LowBitOptions(gradient_centres="mean"))
        reading = {"absorbed": RESIDUAL_ABSORBED, "ranged": {"fc"}, "centres": "mean"}
        check_against_reference(model, lowbit, images(6, 3, 9), bits, **reading)


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_fused_quantizer_is_within_a_key_of_exact_quantiles(bits: int, backend: str) -> None:
    """What the fast method means: centres within one 16-bit key of the sorted ones, exact end points."""
    model = randomize(ConvNet(8, 12, 3, 1, 1, 1))
    with use(backend):
        lowbit = convert(model, bits)
        with watching(lowbit) as watched:
            loss_of(lowbit(images(8, 3, 9))).backward()
    assert len(watched.fused) == 2
    for before, after in watched.fused:
        assert torch.equal(after, key16_quantiles(before, bits + 2))
        exact = exact_centres(before.flatten().numpy(), bits + 2)
        used = after.unique().numpy()
        assert all(same_key(exact, centre).any() for centre in used)
        assert (used[0], used[-1]) == (exact[0], exact[-1])


def test_watching_changes_nothing() -> None:
    model = randomize(Residual(8, 16, 2))
    watched, alone = convert(model, 4), convert(model, 4)
    with watching(watched):
        loss_of(watched(images(4, 3, 7))).backward()
    loss_of(alone(images(4, 3, 7))).backward()
    a, b = gradients(watched), gradients(alone)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("bits", BITS)
def test_accumulation_over_two_backward_passes(bits: int) -> None:
    """Weight gradients are kept in s + 2 bits in between: ``Q(Q(g1) + g2)``; float gradients just add up."""
    model = randomize(Residual(8, 12, 2))
    lowbit = convert(model, bits)
    x = images(4, 3, 7)  # the second pass sees it in another order, so that the classifier's range stays
    reference = check_against_reference(model, lowbit, x, bits, passes=2, absorbed=RESIDUAL_ABSORBED, ranged={"fc"})
    assert len(reference.accumulated) == 5


@pytest.mark.parametrize("bits", BITS)
def test_an_activation_with_many_readers(bits: int) -> None:
    model = randomize(ThreeReaders())
    check_against_reference(model, convert(model, bits), images(4, 3, 7), bits, absorbed={"stem", "a", "b", "c"})
    heads = randomize(TwoHeads())
    check_against_reference(heads, convert(heads, bits), images(50, 13, 0), bits, absorbed={"trunk"})


@pytest.mark.parametrize("skip", [{"stem"}, {"conv2"}, {"fc"}, {"stem", "fc"}])
def test_skipped_layers_stay_full_precision(skip: set[str]) -> None:
    model = randomize(Residual(8, 8, 1))
    lowbit = convert(model, 4, skip=skip)
    reading = {"absorbed": RESIDUAL_ABSORBED - skip, "ranged": {"fc"} - skip, "skipped": skip}
    check_against_reference(model, lowbit, images(4, 3, 7), 4, quantize_input="stem" not in skip, **reading)


@pytest.mark.parametrize("bits", BITS)
def test_batch_of_one(bits: int) -> None:
    model = randomize(Residual(8, 16, 2))
    check_against_reference(
        model, convert(model, bits), images(1, 3, 7), bits, absorbed=RESIDUAL_ABSORBED, ranged={"fc"}
    )


@pytest.mark.parametrize("bits", BITS)
def test_batch_norm_in_eval_mode(bits: int) -> None:
    """Constant statistics: batch norm's backward is a scaling."""
    model = randomize(Residual(8, 16, 2))
    lowbit = convert(model, bits)
    lowbit(images(8, 3, 7, seed=5))  # statistics and the classifier's range
    lowbit.eval()
    check_against_reference(model, lowbit, images(4, 3, 7), bits, absorbed=RESIDUAL_ABSORBED, ranged={"fc"})


@pytest.mark.parametrize("frozen", ["stem", "conv2", "shortcut.0", "fc"])
def test_a_frozen_layer_gets_no_gradient_and_changes_no_other(frozen: str) -> None:
    model = randomize(Residual(8, 16, 2))
    free, held = convert(model, 4), convert(model, 4)
    held.get_submodule(frozen).weight.anchor.requires_grad_(False)
    for m in (free, held):
        loss_of(m(images(4, 3, 7))).backward()
    a, b = gradients(free), gradients(held)
    assert a.keys() - b.keys() == {f"{frozen}.weight"}
    assert all(torch.equal(a[k], b[k]) for k in b)


def test_a_frozen_trunk_keeps_nothing_and_still_trains_the_rest() -> None:
    model = randomize(Residual(8, 16, 2))
    free, held = convert(model, 4), convert(model, 4)
    for name, p in held.named_parameters():
        p.requires_grad_(name.startswith(("conv2", "bn2", "fc")))
    for m in (free, held):
        loss_of(m(images(4, 3, 7))).backward()
    a, b = gradients(free), gradients(held)
    assert b.keys() == {"conv2.weight", "bn2.weight", "bn2.bias", "fc.weight", "fc.bias"}
    assert all(torch.equal(a[k], b[k]) for k in b)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bits", [1, *BITS, 32])
def test_forward_without_gradients_is_the_same(bits: int, training: bool) -> None:
    model = randomize(Residual(5, 12, 2))
    lowbit = convert(model, bits)
    lowbit(images(4, 3, 7))
    lowbit.train(training)
    twin = convert(model, bits)
    twin.load_state_dict(lowbit.state_dict())
    twin.train(training)
    with torch.no_grad():
        without = lowbit(images(4, 3, 7, seed=2))
    assert torch.equal(without, twin(images(4, 3, 7, seed=2)).detach())


@pytest.mark.parametrize("bits", [2, 4, 12])
def test_large_tensors_in_chunks_and_pooled_buffers(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny limits, convolutions run in chunks of 8 images and every buffer comes from the pool."""
    for limit in ("LARGE", "CHUNK", "CHUNK_FROM"):
        monkeypatch.setattr(buffer_pool, limit, 1)
    model = randomize(Residual(5, 12, 2))
    lowbit = convert(model, bits)
    check_against_reference(model, lowbit, images(19, 3, 5), bits, absorbed=RESIDUAL_ABSORBED, ranged={"fc"})
    buffer_pool.POOL.release()
    three = randomize(ThreeReaders())
    check_against_reference(three, convert(three, bits), images(19, 3, 5), bits, absorbed={"stem", "a", "b", "c"})
    buffer_pool.POOL.release()


def plain_formula(model: nn.Module, weights: str, absorbed: set[str]) -> nn.Module:
    """The model with the effective weight written out in plain torch operators (m a constant), no rounding anywhere."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ReLU):
            module.forward = lambda z: torch.where(z > 0, torch.where(z < 4, z, 4.0), 0.0)  # type: ignore[method-assign]
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue

        def run(x: Tensor, layer: nn.Conv2d | nn.Linear = module, name: str = name) -> Tensor:
            w = layer.weight
            if weights == "level":
                w = w.tanh()
                w = w / w.detach().abs().max() if name in absorbed else w
            if isinstance(layer, nn.Linear):
                return F.linear(x, w, layer.bias)
            return F.conv2d(x, w, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)

        module.forward = run  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("weights", ["level", "value"])
@pytest.mark.parametrize(
    ("make", "absorbed", "size"),
    [
        (lambda: Residual(8, 16, 2), RESIDUAL_ABSORBED, 7),
        (lambda: Residual(5, 5, 1), RESIDUAL_ABSORBED, 7),
        (lambda: ConvNet(12, 10, 3, 2, 0, 2), {"stem", "conv"}, 7),
        (ThreeReaders, {"stem", "a", "b", "c"}, 7),
        (NormlessNet, set(), 7),
        (Mlp, {"a"}, 0),
    ],
    ids=["projection", "identity", "grouped", "many readers", "no batch norm", "linear"],
)
def test_full_precision_is_autograd(make, absorbed: set[str], size: int, weights: str) -> None:
    """At 32 bits: the same function without rounding, and torch's own gradients (float64 here) to 1e-5."""
    model = randomize(make())
    full = convert(model, 32, weights)
    assert any(isinstance(m, ClippedReLU) for m in full.modules())
    plain = plain_formula(model, weights, absorbed).double()
    x = images(4, 13 if size == 0 else 3, size)
    y, want = full(x), plain(x.double())
    assert_close(y.detach(), want.detach(), "output")
    loss_of(y).backward()
    loss_of(want).backward()
    expected = dict(plain.named_parameters())
    for name, p in full.named_parameters():
        assert_close(p.grad, expected[name].grad, name)


def test_low_bits_approach_full_precision() -> None:
    """16 bits with the finest kept x_hat differ from 32 bits by no more than that x_hat's rounding."""
    model = randomize(Residual(8, 16, 2))
    x = images(4, 3, 7)
    x = (x * 255).round() / 255
    full, low = convert(model, 32), to_lowbit(model, Precision.for_bits(16), LowBitOptions(bn_saved_bits=8))
    for m in (full, low):
        loss_of(m(x)).backward()
    a, b = gradients(full), gradients(low)
    for name in a:
        error = float((a[name] - b[name]).norm() / a[name].norm())
        assert error < 0.05, f"{name}: {error}"
