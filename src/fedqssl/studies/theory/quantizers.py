"""The quantizers of the analysis: those of ``fedqssl.quant`` with float64 values, their variance in closed form, controls.

Legend: R bits, c compander, Q_j centres, eps = Q(x) - x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.quant import IDENTITY, TANH, Compander, QuantizedTensor, Rounding, compand_quantize, quantile_quantize

FULL = 32
"""Bits that mean full precision: no rounding at all."""


@dataclass(frozen=True, eq=False)
class Rounded:
    """A quantized tensor in float64 with what it was made from."""

    x: Tensor
    value: Tensor
    codebook: Tensor

    @property
    def error(self) -> Tensor:
        """``eps = Q(x) - x``."""
        return self.value - self.x

    @property
    def variance(self) -> Tensor:
        """``Var(eps_i) = (x_i - Q_j)(Q_{j+1} - x_i)`` of stochastic rounding between its two neighbouring centres."""
        low, high = neighbours(self.x, self.codebook)
        return ((self.x - low) * (high - self.x)).clamp(min=0)


def neighbours(x: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor]:
    """The centres ``Q_j <= x <= Q_{j+1}`` around each entry."""
    up = torch.searchsorted(codebook, x.contiguous()).clamp(1, max(codebook.numel() - 1, 1))
    up = up.clamp(max=codebook.numel() - 1)
    return codebook[(up - 1).clamp(min=0)], codebook[up]


def _rounded(x: Tensor, q: QuantizedTensor) -> Rounded:
    return Rounded(x, q.dequantize().double().view(x.shape), q.codebook.double())


def _exact(x: Tensor) -> Rounded:
    return Rounded(x, x, x.flatten().sort().values)


def quantize_weights(
    x: Tensor,
    bits: int,
    generator: torch.Generator,
    rounding: Rounding = "stochastic",
    compander: Compander = TANH,
    scale: float | None = None,
) -> Rounded:
    """``Q(x) = c^-1(uniform_R(c(x) / m))`` (App. A.1), unbiased for x; m = max|c(x)| unless a scale is given."""
    x = x.double()
    if bits == FULL:
        return _exact(x)
    return _rounded(x, compand_quantize(x, bits, compander, rounding, "value", generator, scale))


def quantize_uniformly(x: Tensor, bits: int, generator: torch.Generator, rounding: Rounding = "stochastic") -> Rounded:
    """Uniform quantization over [-max|x|, max|x|]: companding with c(x) = x, the proof's upper reference."""
    return quantize_weights(x, bits, generator, rounding, IDENTITY)


def quantize_gradients(g: Tensor, bits: int, generator: torch.Generator, rounding: Rounding = "stochastic") -> Rounded:
    """Quantile quantization (Sec. 3) with R bits, as App. A assumes; exact centres.

    ``fedqssl.quant`` keeps quantiles in float32, so 24 bits of g are what is rounded: 1e-7 of it, far below any R here.
    """
    g = g.double()
    if bits == FULL:
        return _exact(g)
    return _rounded(g, quantile_quantize(g, bits, "exact", rounding, generator))


def optimal_gaussian_compander(sigma: float) -> Compander:
    """The compander of least high-rate MSE for N(0, sigma^2): ``c'(x) ~ f(x)^(1/3)``, so ``c(x) = erf(x / (sqrt(6) sigma))``."""
    width = math.sqrt(6) * sigma

    def slope_at(y: Tensor) -> Tensor:
        x = torch.erfinv(y)
        slope: Tensor = 2 / (math.sqrt(math.pi) * width) * torch.exp(-x.square())
        return slope

    return Compander(
        f"optimal for N(0, {sigma:g}^2)",
        lambda x: torch.erf(x / width),
        lambda y: width * torch.erfinv(y),
        slope_at,
        limit=1 - 2.0**-20,
    )


def floor_control(rounded: Rounded) -> Rounded:
    """The same centres, but always the lower neighbour: a quantizer that breaks Assumption 1."""
    low, _ = neighbours(rounded.x, rounded.codebook)
    return Rounded(rounded.x, low, rounded.codebook)


def bias_directions(rounded: Rounded) -> dict[str, Tensor]:
    """Directions in which a bias would show: a common shift, growth away from zero, and pull to the nearest centre."""
    low, high = neighbours(rounded.x, rounded.codebook)
    towards = torch.where(rounded.x - low <= high - rounded.x, -1.0, 1.0).to(rounded.x.dtype)
    return {"sum": torch.ones_like(rounded.x), "outwards": rounded.x.sign(), "nearest": towards}
