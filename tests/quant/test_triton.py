"""Triton's kernels in Triton's interpreter, on CPU tensors: plain torch's results, bit for bit."""

import importlib.util
from typing import Any

import pytest
import torch

from fedqssl.quant import SNAP, compand_pack, kernels, quantile_quantize
from fedqssl.quant.kernels import gpu, reference
from fedqssl.quant.kernels.types import Hat, Norm, NormAct

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed (extra gpu)", allow_module_level=True)
triton_kernels: Any = gpu.find()[0]
pytestmark = pytest.mark.skipif(triton_kernels is None or not gpu.interpreting(), reason=gpu.find()[1])

QUICK = (1, 5, 8, 12)
BITS = [pytest.param(s, marks=() if s in QUICK else pytest.mark.slow) for s in range(1, 17)]
SIZES = (0, 1, 1031)
"""Nothing, one element, and a second program whose last group is not full."""
CHANNELS = 5


def _random(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _both(name: str, *arguments):
    return (getattr(k, name)(*arguments) for k in (triton_kernels, reference))


def _awkward(n: int) -> torch.Tensor:
    """Values around the grid with NaN, infinities, both zeros and halves."""
    x = _random(n, 1) * 1.4 - 0.2
    for at, value in enumerate((torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 0.5, 1.0, 1e-40)):
        x[at::97] = value
    return x


@pytest.mark.parametrize("bits", BITS)
def test_packing_and_its_inverse(bits):
    for n in SIZES:
        codes = (_random(n) * 2**bits).to(torch.int32).to(reference.code_dtype(bits))
        got, want = _both("pack", codes, bits)
        assert torch.equal(got, want) and got.numel() == (n * bits + 7) // 8
        back = triton_kernels.unpack(want, bits, n)
        assert back.dtype == codes.dtype and torch.equal(back.to(torch.int32), codes.to(torch.int32))
    table, stream = _random(2**bits, 2), _stream(n, bits)
    for name, *more in (("unpack_affine", 0.37, -0.71), ("unpack_table", table), ("unpack_table", table.double())):
        got, want = _both(name, stream, bits, n, *more)
        assert got.dtype == want.dtype and torch.equal(got, want), name


def _stream(n: int, bits: int) -> torch.Tensor:
    return reference.pack((_random(n) * 2**bits).to(torch.int32).to(reference.code_dtype(bits)), bits)


@pytest.mark.parametrize("bits", BITS)
def test_uniform_quantization(bits):
    for n in SIZES:
        got, want = _both("quantize_pack", _awkward(n), bits, float(2**bits - 1))
        assert torch.equal(got, want), n


@pytest.mark.parametrize("bits", BITS)
def test_the_weight_update(bits):
    n, moves = 1031, min(bits + 2, 16)
    draws = _random(n, 3, torch.float64)
    for y in (
        _awkward(n).double() - 0.5,
        (2 * (draws * 2**bits).floor() / (2**bits - 1) - 1) * 0.4,
    ):  # on a level, up to noise
        for uniform in (None, draws):
            got, want = _both("round_pack", y, bits, 0.4, SNAP, uniform)
            assert torch.equal(got, want), uniform is None
    table, centres = _random(2**bits, 4, torch.float64) - 0.5, _random(2**moves, 5) - 0.5
    for rate in (0.3, 0.0):
        step = _stream(n, bits), bits, n, table, _stream(n, moves), moves, centres, rate
        got, want = _both("step_target", *step)
        assert got.dtype == torch.float64 and torch.equal(got, want)


def _heavy_tails(n: int) -> torch.Tensor:
    x = torch.randn(n, generator=torch.Generator().manual_seed(7))
    return x / _random(n, 8).clamp(min=1e-3) ** 3 * torch.where(_random(n, 9) < 0.4, 0.0, 1.0)  # and many zeros


@pytest.mark.parametrize("bits", BITS)
def test_quantile_quantization(bits):
    for x in (_heavy_tails(1031), _random(1) - 0.5, torch.full((9,), -0.0)):
        found = [k.key_histogram(x) for k in (triton_kernels, reference)]
        assert torch.equal(found[0][0].long(), found[1][0]) and found[0][1:] == found[1][1:]
        table = reference.quantile_table(found[1][0], x.numel(), bits, *found[1][1:])
        own = table
        if bits <= 6 or x.numel() > 9:  # a million keys take the interpreter a second
            own = triton_kernels.quantile_table(found[0][0], x.numel(), bits, *found[0][1:])
        assert own is not None and table is not None and torch.equal(own.centres, table.centres)
        for name in ("table_apply", "code_apply"):
            got, want = _both(name, x, table)
            for one in (got, getattr(triton_kernels, name)(x, own)):
                assert one.dtype == want.dtype and torch.equal(one.double(), want.double()), name
    for bad in (torch.nan, torch.inf):
        hist, low, high = triton_kernels.key_histogram(torch.tensor([1.0, bad]))
        assert triton_kernels.quantile_table(hist, 2, bits, low, high) is None


@pytest.mark.parametrize("bits", [1, 6, 10])
def test_means_of_cells(bits):
    """The table is plain torch's, made where the histogram is; look-ups and the histogram are Triton's."""
    x = _heavy_tails(2**bits + 1031)
    found = []
    for backend in (triton_kernels, reference):
        hist, low, high = backend.key_histogram(x)
        table = backend.TABLES["mean"](hist, x.numel(), bits, low, high)
        found.append((table.centres, backend.table_apply(x, table), backend.code_apply(x, table).int()))
    assert all(torch.equal(own, want) for own, want in zip(*found, strict=True))


@pytest.mark.parametrize("residual, bits", [("codes", 0), ("none", 4), ("codes", 8), ("values", 12)])
def test_norm_activation_quickly(residual, bits):
    _check_norm_act(residual, bits)


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(17))
@pytest.mark.parametrize("residual", ["none", "codes", "values"])
def test_norm_activation_and_packing_in_one_pass(bits, residual):
    _check_norm_act(residual, bits)


def _check_norm_act(residual, bits):
    y = _awkward(207 * CHANNELS).view(-1, CHANNELS) * 3
    norm = Norm(*(_random(CHANNELS, seed) + 0.3 for seed in range(4)))
    top = 2**bits - 1
    more: dict[str, Any] = (
        {"residual_codes": (_random(y.numel()) * 9).to(torch.uint8).view_as(y)} if residual == "codes" else {}
    )
    more |= {"residual_values": _random(y.numel(), 6).view_as(y)} if residual == "values" else {}
    for save, hat_bits in ((True, 4), (True, 0), (False, 4)):
        shape = bits, top / 4, 4 / top if bits else 0.0, hat_bits, 0.31, save, 0 < bits <= 8, bits > 8
        act = NormAct(*shape, residual_step=0.11, **more)
        got, want = _both("norm_act", y, norm, act)
        for part in ("values", "codes", "packed", "mask", "hat"):
            a, b = getattr(got, part), getattr(want, part)
            assert (a is None) == (b is None), part
            assert a is None or torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)), part


@pytest.mark.parametrize(
    "masked, hat_bits",
    [(True, 4), *(pytest.param(m, s, marks=pytest.mark.slow) for m in (True, False) for s in (0, 3, 8))],
)
def test_backward_pass(hat_bits, masked):
    g = _heavy_tails(600 * CHANNELS).view(-1, CHANNELS)  # more rows than one program adds up
    mask = reference.pack((_random(g.numel()) < 0.6).to(torch.uint8), 1) if masked else None
    hat = Hat(_stream(g.numel(), hat_bits) if hat_bits else None, hat_bits, 0.29)
    kept = torch.empty_like(g)
    got, want = triton_kernels.norm_backward_sums(g, mask, hat, kept), reference.norm_backward_sums(g, mask, hat, None)
    assert torch.equal(kept, reference.apply_mask(g, mask))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    coefficients = tuple(_random(CHANNELS, seed) - 0.4 for seed in range(3))
    for bits in (None, 6):
        outs = [torch.empty_like(g) for _ in range(2)]
        for out, k in zip(outs, (triton_kernels, reference), strict=True):
            assert k.norm_backward_apply(g, mask, hat, coefficients, bits, out)
        assert torch.equal(*outs)
    if mask is not None:  # clipped: no matter what is there
        clipped = reference.unpack(mask, 1, g.numel()).view_as(g) == 0
        for k in (triton_kernels, reference):
            assert k.norm_backward_apply(g.masked_fill(clipped, torch.nan), mask, hat, coefficients, 6, outs[0])
            assert torch.equal(*outs)
    g[3] = torch.nan
    for bits in (None, 6):
        assert not triton_kernels.norm_backward_apply(g, mask, hat, coefficients, bits, outs[0])
    y = torch.randn(600, CHANNELS, generator=torch.Generator().manual_seed(2)) + 40
    assert all(torch.equal(a, b) for a, b in zip(*_both("norm_stats", y), strict=True))


def test_any_layout_of_memory():
    x = _random(1200).view(40, 30).T[::2]  # not contiguous
    assert not x.is_contiguous()
    want = reference.quantize_pack(x.contiguous().flatten(), 5, 31.0)
    assert torch.equal(triton_kernels.quantize_pack(x, 5, 31.0), want)
    codes = (x * 15).to(torch.uint8)
    assert torch.equal(triton_kernels.pack(codes, 4), reference.pack(codes.contiguous().flatten(), 4))


def test_chosen_by_name():
    x = _heavy_tails(9000)
    for work in (
        lambda: quantile_quantize(x, 6).codes,
        lambda: compand_pack(x / 50, 5, 0.5, rounding="stochastic", generator=torch.Generator().manual_seed(1)),
    ):
        found = []
        for choice in ("triton", "torch"):
            with kernels.use(choice):
                assert kernels.backend_name() == choice
                found.append(work())
        assert torch.equal(*found)
