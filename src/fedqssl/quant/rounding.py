"""Rounding to a grid: nearest, or stochastic with the probabilities of Assumption 1."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedqssl.accelerators import put

Rounding = Literal["nearest", "stochastic"]

SNAP = 1e-4
"""Values this close to a level, in cells, are on it: the noise of ``c(c^-1(.))`` must not flip a code."""

MAX_BITS = 16


def check_bits(bits: int) -> int:
    """Return ``bits`` if it is a whole number from 1 to 16, else raise an error that says so."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be a whole number from 1 to {MAX_BITS}, not {bits!r}")
    return bits


def check_rounding(rounding: str) -> None:
    """Raise an error that lists the choices unless ``rounding`` is one of them."""
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding must be 'nearest' or 'stochastic', not {rounding!r}")


def uniform_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform random numbers in [0, 1) of x's shape and type, drawn where ``generator`` is and moved to x."""
    if generator is None:
        raise ValueError("stochastic rounding needs a generator of random numbers; pass generator=")
    pinned = x.device.type == "cuda"  # drawn where the copy to the GPU can read it without another copy
    drawn = torch.rand(x.shape, dtype=x.dtype, device=generator.device, generator=generator, pin_memory=pinned)
    return put(drawn, x.device)


def _within(t: Tensor, top: int) -> Tensor:
    return torch.nan_to_num(t, nan=0.0, posinf=float(top), neginf=0.0).clamp(0, top)


def grid_codes(
    t: Tensor, top: int, uniform: Tensor | None = None, snap: float = SNAP, above: Tensor | None = None
) -> Tensor:
    """``t`` rounded to 0..top, NaN to 0, as floats: to nearest (half to even), or by chance.

    Given ``uniform`` numbers, it goes up where they are below the probability ``above``, by default ``t - floor(t)``; within
    ``snap`` cells of a level, t is on it.
    """
    t = _within(t, top)
    nearest = t.round()
    if uniform is None:
        return nearest
    low = t.floor()
    p = t - low if above is None else above
    up = low + (uniform < p).to(t.dtype)
    return torch.where((t - nearest).abs() <= snap, nearest, up).clamp(0, top)


def round_to_grid(
    t: Tensor,
    top: int,
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
    centres: Tensor | None = None,
    values: Tensor | None = None,
    snap: float = SNAP,
) -> Tensor:
    """Round ``t``, measured in cells from the lowest level, to an integer in 0..top (as floats of t's type).

    ``nearest`` is round half to even. ``stochastic`` takes the upper neighbour with probability ``p``:
    ``p = t - floor(t)``, unbiased for t; or, given the ``centres`` of a non-uniform codebook and the ``values`` to be
    rounded, ``p = (x - v_k) / (v_{k+1} - v_k)``, unbiased for x (Assumption 1). Within ``snap`` cells of a level, t is on it.
    """
    check_rounding(rounding)
    if rounding == "nearest":
        return grid_codes(t, top)
    above = None
    if centres is not None and values is not None:
        k = _within(t, top).floor().to(torch.int64).clamp(max=max(top - 1, 0))
        v = centres[k]
        above = (values - v) / (centres[(k + 1).clamp(max=top)] - v).clamp(min=torch.finfo(t.dtype).tiny)
    return grid_codes(t, top, uniform_like(t, generator), snap, above)
