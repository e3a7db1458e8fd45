"""Slopes, intervals and the zero-mean test; the quantizers' closed-form variance and the controls."""

import pytest
import torch

from fedqssl.evaluation.statistics import Estimate, log_slope, slope, t_quantile, z_threshold, zero_mean_z
from fedqssl.quant import compand_quantize, quantile_quantize
from fedqssl.studies.theory.quantizers import (
    FULL,
    Rounded,
    bias_directions,
    floor_control,
    optimal_gaussian_compander,
    quantize_gradients,
    quantize_uniformly,
    quantize_weights,
)


def _x(count: int = 20_000, seed: int = 0) -> torch.Tensor:
    return 0.5 * torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _gen(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_slopes_and_intervals_by_hand() -> None:
    assert slope([0, 1, 2], [1, 3, 5]) == pytest.approx(2)
    exact = log_slope([1, 2, 3], torch.tensor([[4.0, 1.0, 0.25], [8.0, 2.0, 0.5]], dtype=torch.float64))
    assert exact.mean == pytest.approx(-2) and exact.low == pytest.approx(-2)
    wide = Estimate.of([1.0, 2.0, 3.0])
    assert (wide.low, wide.high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert t_quantile(1000) == pytest.approx(1.9623, abs=1e-3) and t_quantile(30) == pytest.approx(2.0423, abs=1e-3)
    with pytest.raises(ValueError, match="at least two seeds"):
        Estimate.of([1.0])
    with pytest.raises(ValueError, match="variance is zero"):
        log_slope([1, 2], torch.tensor([[1.0, 0.0]]))


def test_threshold_is_bonferroni() -> None:
    assert z_threshold(1, 0.05) == pytest.approx(1.96, abs=1e-2)
    assert z_threshold(10, 0.05) == pytest.approx(2.807, abs=1e-3)


def test_quantizers_are_those_of_the_package() -> None:
    x = _x(100)
    ours = quantize_weights(x, 4, _gen())
    theirs = compand_quantize(x, 4, rounding="stochastic", domain="value", generator=_gen())
    assert torch.equal(ours.value, theirs.dequantize())
    g = quantize_gradients(x, 4, _gen())
    assert torch.equal(g.value, quantile_quantize(x, 4, "exact", "stochastic", _gen()).dequantize().double())
    assert torch.equal(quantize_weights(x, FULL, _gen()).value, x) and torch.equal(
        quantize_gradients(x, FULL, _gen()).error, 0 * x
    )


@pytest.mark.parametrize("make", [quantize_weights, quantize_uniformly, quantize_gradients])
def test_closed_form_variance_matches_draws(make: object) -> None:
    assert callable(make)
    x = _x()
    first = make(x, 5, _gen())
    total = float(sum(make(x, 5, _gen(s)).error.square().sum() for s in range(10))) / 10
    assert total == pytest.approx(float(first.variance.sum()), rel=0.05)


def _z(rounded: Rounded) -> float:
    return max(abs(v) for v in zero_mean_z(rounded.error, rounded.variance, bias_directions(rounded)).values())


@pytest.mark.parametrize("make", [quantize_weights, quantize_uniformly, quantize_gradients])
def test_stochastic_rounding_has_zero_mean_and_the_controls_do_not(make: object) -> None:
    assert callable(make)
    limit = z_threshold(9, 1e-4)  # nine tests in all: rejects wrongly with probability 1e-4
    x = _x()
    assert _z(make(x, 6, _gen())) < limit
    assert _z(make(x, 6, _gen(), "nearest")) > limit
    assert _z(floor_control(make(x, 6, _gen()))) > limit


def test_optimal_compander_reaches_the_panter_dite_constant() -> None:
    sigma, bits = 0.5, 8
    c = optimal_gaussian_compander(sigma)
    x = _x()
    assert torch.allclose(c.inverse(c.forward(x)), x)
    h = 1e-6
    assert torch.allclose(c.slope_at(c.forward(x)), (c.forward(x + h) - c.forward(x - h)) / (2 * h), atol=1e-6)
    error = quantize_weights(x, bits, _gen(), "nearest", c, scale=1 - 2.0**-20).error
    expected = 3**0.5 * torch.pi / 2 * sigma**2 / 4**bits  # Panter and Dite 1951
    assert float(error.square().mean()) == pytest.approx(expected, rel=0.05)
