"""From values to positions in a drawing: ranges, linear and logarithmic scales, round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class AxisScale:
    """From values ``low..high`` to positions ``start..end``, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values for the axis labels."""
        return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, count)


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 5 x 10^k that cuts a span into at most ``count`` parts."""
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * f for f in (1, 2, 5, 10) if power * f >= rough * (1 - 1e-9))


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of a round step inside ``low..high``."""
    if not high > low:
        return [low]
    step = nice_step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten and, if these are few, their doubles and quintuples; multiples of a round step in a narrow range."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]
        if len(found) >= 3:
            return found
    return found if len(found) > 1 else nice_ticks(low, high)


def limits(values: Iterable[float], *, zero: bool = False, pad: float = 0.06) -> tuple[float, float]:
    """The range of finite values, widened a little to round numbers; never empty."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        pad_by = 0.1 * abs(high) or 1.0
        return (low if zero and low == 0 else low - pad_by), high + pad_by
    span = high - low
    return (low if zero and low == 0 else low - pad * span), (high if zero and high == 0 else high + pad * span)


def log_limits(values: Iterable[float]) -> tuple[float, float]:
    """The range of positive values, widened by a fifth of a decade."""
    known = [v for v in values if math.isfinite(v) and v > 0]
    if not known:
        return 0.1, 1.0
    return min(known) / 1.4, max(known) * 1.4


__all__ = ["AxisScale", "limits", "log_limits"]
