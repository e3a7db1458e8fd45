"""Real factors as integers: a multiplier, an offset and a shift that rounds to nearest."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedqssl.device.c_export.operations import Rescale

MULTIPLIER_BITS = 31
"""A multiplier is an int32."""
TOTAL_BITS = 62
"""Sum, offset and residual together stay below 2^62 and fit an int64."""
MOST_SHIFT = 62
SCORE_BITS = 16
"""Fractional bits of an int32, at most: 2^-17 of a code is far below the noise of float32."""


def _exponent(value: float) -> int:
    """The smallest e with ``value < 2^e``."""
    return math.frexp(value)[1]


def fraction_bits(largest: float) -> int:
    """Fractional bits, at most :data:`SCORE_BITS`, with which numbers up to ``largest`` fit an int32."""
    return min(SCORE_BITS, 30 - _exponent(largest))


def rescale(factor: ArrayLike, summand: ArrayLike, largest: ArrayLike, extra: float = 0.0, keep: int = 0) -> Rescale:
    """``round(2^keep * (x * factor + summand))`` for integers x, as precise as 32-bit multipliers allow.

    Args:
        factor: real numbers, one per channel.
        summand: as many.
        largest: of ``|x|``, per channel.
        extra: the largest of what else will be added, in the same unit as ``summand``.
        keep: fractional bits that are left in the result.

    Raises:
        ValueError: the numbers are not finite, or too large for integers.
    """
    a, b, x = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (factor, summand, largest))
    total = float((np.abs(a) * x + np.abs(b)).max()) + extra
    if not math.isfinite(total):
        raise ValueError("its numbers are not finite")
    at_most = MULTIPLIER_BITS - _exponent(float(np.abs(a).max())), TOTAL_BITS - 1 - _exponent(total), MOST_SHIFT
    shift = min(at_most)
    if shift <= keep:
        raise ValueError("its numbers are too large")
    multiplier = np.array([_rounded(v, shift, 2**MULTIPLIER_BITS - 1) for v in a], dtype=np.int64)
    half = 1 << (shift - keep - 1)
    offset = np.array([_rounded(v, shift, 2**TOTAL_BITS) + half for v in b], dtype=np.int64)
    return Rescale(multiplier, offset, shift - keep)


def _rounded(value: float, shift: int, most: int) -> int:
    """``value * 2^shift`` as an integer; exact up to its rounding, since a power of two costs no bits."""
    return max(-most, min(most, round(math.ldexp(value, shift))))


__all__ = ["fraction_bits", "rescale"]
