"""Companded quantization of weights (Sec. 3, Eq. 2; App. A.1): uniform levels of ``c(x) / m``.

Legend: c compander, m = max|c(x)| scale of a layer, k code in 0..2^s - 1, l level in [-1, 1], x parameter.

* level of a code: ``l = 2k / (2^s - 1) - 1``
* parameter that a code stands for: ``x = c^-1(m l)``

Arithmetic is float64: in float32 the noise of ``c(c^-1(.))`` reaches a hundredth of a cell at 16 bits, and stochastic
rounding would flip codes that no gradient has touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedqssl.quant.kernels import ops_on
from fedqssl.quant.kernels.reference import code_dtype
from fedqssl.quant.packing import pack_own
from fedqssl.quant.rounding import SNAP, Rounding, check_bits, check_rounding, round_to_grid, uniform_like
from fedqssl.quant.tensor import QuantizedTensor

MAX_SCALE = 1 - 2.0**-20
"""Largest scale of the tanh compander: ``atanh(1)`` is infinite."""

Domain = Literal["level", "value"]


@dataclass(frozen=True)
class Compander:
    """A monotone odd function c with its inverse and its derivative *as a function of c(x)*.

    Any pair of callables makes one: ``Compander("cube", lambda x: x**3, ..., ...)``. ``limit`` bounds |c(x)|.
    """

    name: str
    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    slope_at: Callable[[Tensor], Tensor]
    limit: float = float("inf")


def _tanh_slope(y: Tensor) -> Tensor:
    slope: Tensor = 1 - y.square()
    return slope


TANH = Compander("tanh", torch.tanh, torch.atanh, _tanh_slope, limit=MAX_SCALE)
IDENTITY = Compander("identity", lambda x: x, lambda y: y, torch.ones_like)
COMPANDERS = {c.name: c for c in (TANH, IDENTITY)}


def levels(bits: int, device: torch.device | None = None) -> Tensor:
    """All levels ``2k / (2^s - 1) - 1`` of s bits, in float64."""
    top = 2 ** check_bits(bits) - 1
    odd = torch.arange(-top, top + 1, 2, dtype=torch.float64, device=device)
    return odd.div(top)


def compand_scale(x: Tensor, compander: Compander = TANH) -> float:
    """``m = max|c(x)|`` over a layer, rounded to float32 and kept below the compander's limit; 0 if all is zero."""
    if x.numel() == 0:
        return 0.0
    m = compander.forward(x.detach().double()).abs().max().to(torch.float32)
    if not bool(torch.isfinite(m)):
        raise ValueError("cannot quantize weights that hold NaN or infinity")
    return min(float(m), compander.limit)


def grown_scale(scale: float, before: Tensor, after: Tensor, compander: Compander = TANH) -> float:
    """The scale m' of a layer whose parameters go from x to x': ``c^-1(m') = c^-1(m) |x'| / |x|``, below the compander's limit.

    Zero-mean steps change the norm of x' no more than they would in floats, whereas they push ``max|x'|`` outwards every time.
    """
    ratio = float(after.double().norm() / before.double().norm())
    if ratio == 1:
        return scale  # c(c^-1(m)) is not exactly m
    return compand_scale(compander.inverse(torch.tensor(scale, dtype=torch.float64)) * ratio, compander)


def finer_scale(scale: float, bits: int, extra: int) -> float:
    """The scale at which a grid of ``s + r`` bits has 2^r places in every cell of the grid of s bits: ``m T / (2^r top)``.

    With ``top = 2^s - 1`` and ``T = 2^(s+r) - 1``, the place ``K = 2^r k + j`` lies ``(2j + 1 - 2^r) / 2^(r+1)`` cells from
    level k, so that the upper s bits of K are the code of the nearest level.
    """
    top, last = 2 ** check_bits(bits) - 1, 2 ** check_bits(bits + extra) - 1
    ratio: float = last / (2**extra * top)
    return scale * ratio


def compand_values(bits: int, scale: float, compander: Compander = TANH, device: torch.device | None = None) -> Tensor:
    """The codebook ``x_k = c^-1(m l_k)`` in float64; all zeros for m = 0. Beyond the compander's limit it is what is there."""
    return compander.inverse((scale * levels(bits, device)).clamp(-compander.limit, compander.limit))


def compand_codes(
    x: Tensor,
    bits: int,
    scale: float,
    compander: Compander = TANH,
    rounding: Rounding = "nearest",
    domain: Domain = "level",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Codes ``k = Q(x)``: ``c(x)/m`` rounded on the uniform grid of levels, values beyond ±m clipped.

    Args:
        x: parameters of any shape.
        bits: s, 1 to 16.
        scale: m, as from :func:`compand_scale`.
        compander: c.
        rounding: ``nearest`` or ``stochastic``.
        domain: what stochastic rounding is unbiased for: ``c(x)/m`` (``level``) or x (``value``). Nearest rounding is to the
            nearest level in both.
        generator: source of random numbers for stochastic rounding.
    """
    top = 2 ** check_bits(bits) - 1
    snap = _snap(x, top)
    x = x.detach().double()
    if scale == 0:
        t = torch.full_like(x, top / 2)
        return t.floor().to(torch.int32).to(code_dtype(bits))
    t = (compander.forward(x) / scale + 1) * (top / 2)
    if domain == "value" and rounding == "stochastic":
        centres = compand_values(bits, scale, compander, x.device)
        codes = round_to_grid(t, top, rounding, generator, centres, x, snap)
    else:
        codes = round_to_grid(t, top, rounding, generator, snap=snap)
    return codes.to(torch.int32).to(code_dtype(bits))


def _snap(x: Tensor, top: int) -> float:
    return SNAP if x.dtype == torch.float64 else max(SNAP, top * 2.0**-23)  # float32 parameters carry more noise


def compand_pack(
    x: Tensor,
    bits: int,
    scale: float,
    compander: Compander = TANH,
    rounding: Rounding = "nearest",
    domain: Domain = "level",
    generator: torch.Generator | None = None,
) -> Tensor:
    """The codes of :func:`compand_codes`, packed: the same bytes, and in one pass where the domain is ``level``."""
    if scale == 0 or (domain == "value" and rounding == "stochastic"):
        return pack_own(compand_codes(x, bits, scale, compander, rounding, domain, generator), bits)
    check_rounding(rounding)
    snap = _snap(x, 2 ** check_bits(bits) - 1)
    y = compander.forward(x.detach().double())
    uniform = uniform_like(y, generator) if rounding == "stochastic" else None
    packed: Tensor = ops_on(y.device).round_pack(y, bits, scale, snap, uniform)
    return packed


def compand_quantize(
    x: Tensor,
    bits: int,
    compander: Compander = TANH,
    rounding: Rounding = "nearest",
    domain: Domain = "value",
    generator: torch.Generator | None = None,
    scale: float | None = None,
) -> QuantizedTensor:
    """Quantize a layer: codes, and the codebook of what they stand for (App. A.1: ``Q(x) = c^-1(uniform(c(x)))``).

    Arguments are those of :func:`compand_codes`; without a ``scale`` it is computed from x.
    """
    m = compand_scale(x, compander) if scale is None else scale
    codes = compand_codes(x, bits, m, compander, rounding, domain, generator)
    return QuantizedTensor(codes, compand_values(bits, m, compander, x.device).to(x.dtype), bits)


def literal_quantize(
    x: Tensor, bits: int, rounding: Rounding = "nearest", generator: torch.Generator | None = None
) -> QuantizedTensor:
    """Eq. 2 as printed: ``r_o = 2 quantize_s(tanh(r_i) / (2 max|tanh r_i|) + 1/2) - 1``.

    Not idempotent: applied to its own output, levels drift outwards (see ``docs/decisions.md``). Kept as a reference.
    """
    m = compand_scale(x, TANH)
    codes = compand_codes(x, bits, m, TANH, rounding, "level", generator)
    return QuantizedTensor(codes, levels(bits, x.device).to(x.dtype), bits)
