"""Companded quantizers (PAPER-TO-CODE section 1): codebook, idempotence, snapping, unbiasedness; and the literal's drift."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from fedqssl.quant import IDENTITY, TANH, Compander, compand_codes, compand_quantize, compand_scale, compand_values
from fedqssl.quant.compand import MAX_SCALE, levels, literal_quantize

# mu-law, as a user would write it
MU = Compander(
    "mu-law",
    lambda x: x.sign() * torch.log1p(255 * x.abs()) / math.log(256),
    lambda y: y.sign() * torch.expm1(y.abs() * math.log(256)) / 255,
    lambda y: 255 / (math.log(256) * torch.exp(y.abs() * math.log(256))),
)
NUMPY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "tanh": (np.tanh, np.arctanh),
    "identity": (lambda x: x, lambda y: y),
    "mu-law": (
        lambda x: np.sign(x) * np.log1p(255 * np.abs(x)) / np.log(256),
        lambda y: np.sign(y) * (256.0 ** np.abs(y) - 1) / 255,
    ),
}
ALL = pytest.mark.parametrize("compander", [TANH, IDENTITY, MU], ids=lambda c: c.name)
ALL_BITS = range(1, 17)
ERROR_RATE = 1e-6


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _weights(n: int = 501, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(n, generator=_generator(seed), dtype=torch.float64).mul_(0.2).to(dtype)


@ALL
@pytest.mark.parametrize("bits", ALL_BITS)
def test_codebook_and_codes_are_the_formula(bits, compander):
    """``x_k = c^-1(m (2k/(2^s-1) - 1))`` and ``k = round((c(x)/m + 1)(2^s-1)/2)``, in numpy."""
    forward, inverse = NUMPY[compander.name]
    x = _weights()
    top = 2**bits - 1
    m = float(np.float32(np.abs(forward(x.numpy())).max()))
    assert compand_scale(x, compander) == pytest.approx(m, rel=1e-6)
    m = compand_scale(x, compander)
    assert m == float(np.float32(m))  # what a container stores
    want = inverse(m * (2 * np.arange(top + 1) / top - 1))
    np.testing.assert_allclose(compand_values(bits, m, compander).numpy(), want, rtol=1e-9, atol=1e-14)
    position = np.clip((forward(x.numpy()) / m + 1) * top / 2, 0, top)
    codes = compand_codes(x, bits, m, compander).to(torch.int64).numpy()
    clear = np.abs(position - np.floor(position) - 0.5) > 1e-9
    np.testing.assert_array_equal(codes[clear], np.rint(position[clear]))
    q = compand_quantize(x, bits, compander)
    np.testing.assert_allclose(q.dequantize().numpy(), want[codes], rtol=1e-9, atol=1e-14)
    assert q.codes.dtype == (torch.uint8 if bits <= 8 else torch.uint16)


@ALL
@pytest.mark.parametrize("bits", ALL_BITS)
def test_q_of_q_is_q(bits, compander):
    """Codes, scale and values in float64, the arithmetic of the optimiser; codes in float32 as well."""
    for seed in range(3):
        x = _weights(seed=seed) * 10.0 ** (1 - seed)
        once = compand_quantize(x, bits, compander)
        twice = compand_quantize(once.dequantize(), bits, compander)
        assert torch.equal(once.codes.int(), twice.codes.int())
        assert torch.equal(once.dequantize(), twice.dequantize())
        assert compand_scale(once.dequantize(), compander) == compand_scale(x, compander)
        single = compand_quantize(x.float(), bits, compander)
        view = single.dequantize()
        assert view.dtype == torch.float32
        assert torch.equal(single.codes.int(), compand_quantize(view, bits, compander).codes.int())
        assert compand_scale(view, compander) == pytest.approx(compand_scale(x.float(), compander), rel=2.5e-7)


@pytest.mark.parametrize(
    ("bits", "compander"),
    [(12, TANH), (16, TANH), (12, IDENTITY), (16, IDENTITY), (12, MU)],
    ids=lambda v: getattr(v, "name", v),
)
@pytest.mark.parametrize("domain", ["level", "value"])
def test_zero_gradient_changes_no_code_in_1000_stochastic_steps(bits, domain, compander):
    """Codes -> x -> codes with the scale recomputed each time, as the optimiser does with policy ``max``."""
    x = _weights(97)
    m = compand_scale(x, compander)
    first = compand_codes(x, bits, m, compander).int()
    codes, generator = first, _generator(1)
    for _ in range(1000):
        x = compand_values(bits, m, compander)[codes.long()]
        m = compand_scale(x, compander)
        codes = compand_codes(x, bits, m, compander, "stochastic", domain, generator).int()
    assert torch.equal(codes, first)


@ALL
@pytest.mark.parametrize("domain", ["level", "value"])
def test_every_code_survives_stochastic_rounding(domain, compander):
    for bits in ALL_BITS:
        for m in (1e-6, 0.0313, 0.5, MAX_SCALE):
            m = float(np.float32(m))
            x = compand_values(bits, m, compander)
            codes = compand_codes(x, bits, m, compander, "stochastic", domain, _generator(bits))
            assert torch.equal(codes.to(torch.int64), torch.arange(2**bits)), (bits, m)


@pytest.mark.parametrize(
    "bits",
    [8, 12, 16],
)
@pytest.mark.parametrize("domain", ["level", "value"])
def test_float32_views_survive_stochastic_rounding(domain, bits):
    for seed in range(5):
        q = compand_quantize(_weights(20_000, seed, torch.float32), bits)
        again = compand_quantize(q.dequantize(), bits, TANH, "stochastic", domain, _generator(seed))
        assert torch.equal(q.codes.int(), again.codes.int())


@ALL
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12])
def test_error_is_within_one_cell_and_nearest_minimises(bits, compander):
    x = _weights()
    m = compand_scale(x, compander)
    cell = 2 / (2**bits - 1)
    level = compander.forward(x) / m
    grid = levels(bits)
    nearest = grid[compand_codes(x, bits, m, compander).long()]
    best = (level.unsqueeze(1) - grid).abs().amin(1) if bits < 12 else torch.full_like(level, cell / 2)
    assert bool(((nearest - level).abs() <= best + 1e-7).all())
    values = compand_values(bits, m, compander)
    for domain in ("level", "value"):
        codes = compand_codes(x, bits, m, compander, "stochastic", domain, _generator()).long()
        assert float((grid[codes] - level).abs().max()) <= cell * (1 + 1e-3)
        low, high = values[(codes - 1).clamp(min=0)], values[(codes + 1).clamp(max=2**bits - 1)]
        slack = 1e-6 * float(x.abs().max())
        assert bool(((low - slack <= x) & (x <= high + slack)).all())  # never past a neighbouring centre


@ALL
@pytest.mark.parametrize("domain", ["level", "value"])
def test_stochastic_rounding_is_unbiased_in_its_own_domain(domain, compander):
    """z-tests of 28 means, 1e-6 chance of failing for a right quantizer; the other domain is biased, which shows power."""
    draws, bits, m = 20_000, 3, 0.9
    values, grid = compand_values(bits, m, compander), levels(bits)
    own, other = (grid, values) if domain == "level" else (values, grid)
    cases = [(k, p) for k in range(7) for p in (0.1, 0.3, 0.5, 0.8)]
    bound = NormalDist().inv_cdf(1 - ERROR_RATE / (2 * len(cases)))
    generator, worst_other = _generator(3), 0.0
    for k, p in cases:
        target = torch.lerp(own[k], own[k + 1], p)
        x = target if domain == "value" else compander.inverse(m * target)
        codes = compand_codes(x.expand(draws), bits, m, compander, "stochastic", domain, generator).long()
        assert set(codes.tolist()) == {k, k + 1}
        error = math.sqrt(p * (1 - p) / draws)  # in cells
        z = float((own[codes].mean() - target) / (own[k + 1] - own[k])) / error
        assert abs(z) < bound, (k, p, z)
        target = compander.forward(x) / m if domain == "value" else x
        worst_other = max(worst_other, abs(float((other[codes].mean() - target) / (other[k + 1] - other[k]))) / error)
    assert compander is IDENTITY or worst_other > 3 * bound


@ALL
def test_all_zero_layer_stays_zero(compander):
    x = torch.zeros(3, 5)
    assert compand_scale(x, compander) == 0.0
    for bits in ALL_BITS:
        for rounding in ("nearest", "stochastic"):
            q = compand_quantize(x, bits, compander, rounding, generator=_generator())
            assert torch.equal(q.dequantize(), x)
            assert int(q.codes.int().max()) < 2**bits
            assert torch.equal(compand_quantize(q.dequantize(), bits, compander).codes.int(), q.codes.int())


def test_constant_empty_and_huge_layers():
    assert compand_scale(torch.empty(0)) == 0.0
    assert compand_quantize(torch.empty(0, 3), 4).dequantize().shape == (0, 3)
    assert torch.allclose(compand_quantize(torch.full((4,), -0.25), 4).dequantize(), torch.full((4,), -0.25))
    huge = torch.tensor([50.0, -1e30, 0.1])
    assert compand_scale(huge) == MAX_SCALE == 1 - 2**-20
    values = compand_quantize(huge, 4).dequantize()
    assert bool(torch.isfinite(values).all()) and values[0] == -values[1]


def test_values_beyond_a_given_scale_are_clipped():
    q = compand_quantize(torch.tensor([-3.0, 0.0, 3.0]), 4, IDENTITY, scale=0.5)
    assert q.codes.tolist()[::2] == [0, 15] and q.dequantize().tolist()[::2] == [-0.5, 0.5]
    for domain in ("level", "value"):
        codes = compand_codes(torch.tensor([-3.0, 3.0]), 4, 0.5, TANH, "stochastic", domain, _generator())
        assert codes.tolist() == [0, 15]


def test_generator_is_required_and_decides():
    x = _weights()
    for domain in ("level", "value"):
        with pytest.raises(ValueError, match="pass generator="):
            compand_quantize(x, 4, TANH, "stochastic", domain)
        first, again, other = (
            compand_quantize(x, 4, TANH, "stochastic", domain, _generator(s)).codes for s in (1, 1, 2)
        )
        assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("compander", "bad"),
    [(TANH, math.nan), (IDENTITY, math.nan), (IDENTITY, math.inf), (MU, math.inf)],  # tanh(inf) = 1 is a value
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_not_finite_weights_raise(compander, bad):
    with pytest.raises(ValueError, match="NaN or infinity"):
        compand_quantize(torch.tensor([bad, 0.5]), 4, compander)


@pytest.mark.parametrize("compander", [TANH, IDENTITY, MU], ids=lambda c: c.name)
def test_slope_is_the_derivative_of_the_compander(compander):
    x = torch.linspace(-1.5, 1.5, 30, dtype=torch.float64, requires_grad=True)
    compander.forward(x).sum().backward()
    torch.testing.assert_close(compander.slope_at(compander.forward(x.detach())), x.grad)


def test_literal_is_equation_2():
    x = _weights()
    for bits in (1, 2, 4, 8, 16):
        top = 2**bits - 1
        t = np.tanh(x.numpy())
        want = 2 * (np.rint(top * (t / (2 * np.abs(t).max()) + 0.5)) / top) - 1
        got = literal_quantize(x, bits).dequantize().numpy()
        off = np.abs(got - want) > 1e-12
        assert off.mean() < (0.01 if bits == 16 else 1e-9)  # float32 scale: codes may differ at a rounding boundary
        assert np.abs(got - want).max() <= 2 / top + 1e-12


def test_literal_drifts_outwards_with_a_zero_gradient():
    """PAPER-TO-CODE: at 4 bits 0.467 -> 0.6 -> 0.733 -> 0.867; in four steps half of the 16 levels are dead."""
    start = levels(4)
    path, used = [start], [16]
    for _ in range(6):
        path.append(literal_quantize(path[-1], 4).dequantize())
        used.append(path[-1].unique().numel())
    at = int((start - 0.467).abs().argmin())
    assert [round(float(w[at]), 3) for w in path[:4]] == [0.467, 0.6, 0.733, 0.867]
    assert used == [16, 14, 12, 10, 8, 8, 8]
    above = path[4][start.abs() > 0.2 + 1e-6].abs()
    assert {round(v, 3) for v in above.tolist()} == {0.867, 1.0}
    q = compand_quantize(start / 4, 4)  # the companded quantizer keeps all 16
    assert compand_quantize(q.dequantize(), 4).codes.unique().numel() == 16
