"""Elements, scales, ticks, axes and marks of the charts; all are 360 units wide, so that text keeps its size on a phone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH = 360.0
Format = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
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
        """Round values to write at the axis."""
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
    """Powers of ten and, if these are few, their doubles and quintuples."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]
        if len(found) >= 3:
            return found
    return found or [low]


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


def el(tag: str, *children: str | None, **attributes: str | float | None) -> Markup:
    """An SVG element with escaped text; ``class_`` is ``class``, ``text_anchor`` is ``text-anchor``, None is left out.

    Example:
        >>> el("title", "a < b", class_="note")
        Markup('<title class="note">a &lt; b</title>')
    """
    words = [tag]
    for name, value in attributes.items():
        if value is not None:
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, (int, float)) else escape(value)
            words.append(f'{name.rstrip("_").replace("_", "-")}="{shown}"')
    inner = "".join(escape(child) for child in children if child is not None)
    return Markup(f"<{' '.join(words)}>{inner}</{tag}>")


def text(x: float, y: float, words: str, *, at: str = "start", kind: str = "tick", turn: float | None = None) -> Markup:
    """Words; ``at`` is start, middle or end."""
    spin = f"rotate({turn:g} {x:.1f} {y:.1f})" if turn else None
    return el("text", words, x=x, y=y, text_anchor=at, class_=kind, transform=spin)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line."""
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def y_axis(scale: Scale, left: float, right: float, form: Format, count: int = 5) -> list[Markup]:
    """Grid lines and their values at the left."""
    found = []
    for tick in scale.ticks(count):
        y = scale(tick)
        found += [line(left, y, right, y, "rule"), text(left - 6, y + 3.5, form(tick), at="end")]
    return found


def _apart(places: Sequence[tuple[float, str]]) -> bool:
    """Whether no two labels side by side touch."""
    return all(b - a > 3.3 * (len(v) + len(w)) + 5 for (a, v), (b, w) in itertools.pairwise(places))


def x_axis(
    scale: Scale, bottom: float, form: Format, label: str, *, ticks: Sequence[float] | None = None
) -> list[Markup]:
    """Values below the plot and what they are; as many as fit without touching."""
    found = [line(scale.start, bottom, scale.end, bottom, "axis")]
    for count in (6, 5, 4, 3, 2):
        places = [(scale(t), form(t)) for t in (scale.ticks(count) if ticks is None else ticks)]
        if _apart(places):
            break
    free = -math.inf
    for x, words in places:
        half = 3.3 * len(words)
        if x - half < free:
            continue
        found += [line(x, bottom, x, bottom + 4, "axis"), text(x, bottom + 16, words, at="middle")]
        free = x + half + 5
    return [*found, text((scale.start + scale.end) / 2, bottom + 32, label, at="middle", kind="label")]


class Mark(NamedTuple):
    """How a thing is marked: its shape, which says what its colour says to those who do not see the colour, and CSS classes."""

    shape: str
    kind: str


SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")


def dot(x: float, y: float, mark: Mark, tip: str | None = None, size: float = 4.5) -> Markup:
    """A mark at a place; ``tip`` is told when it is pointed at."""
    title = el("title", tip) if tip else None
    r, w, h = size, f"{size * 1.2:.1f}", f"{size * 1.3:.1f}"
    paths = {
        "square": f"M{x - r * 0.88:.1f} {y - r * 0.88:.1f}h{r * 1.76:.1f}v{r * 1.76:.1f}h{-r * 1.76:.1f}z",
        "triangle": f"M{x:.1f} {y - r * 1.15:.1f}l{r * 1.1:.1f} {r * 2:.1f}h{-r * 2.2:.1f}z",
        "down": f"M{x:.1f} {y + r * 1.15:.1f}l{r * 1.1:.1f} {-r * 2:.1f}h{-r * 2.2:.1f}z",
        "diamond": f"M{x:.1f} {y - r * 1.3:.1f}l{w} {h}l-{w} {h}l-{w} -{h}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}",
    }
    kind = f"mark {mark.kind}{' open' if mark.shape == 'cross' else ''}"
    if mark.shape not in paths:
        return el("circle", title, cx=x, cy=y, r=r, class_=kind)
    return el("path", title, d=paths[mark.shape], class_=kind)


__all__ = [
    "SHAPES",
    "WIDTH",
    "Format",
    "Mark",
    "Scale",
    "dot",
    "el",
    "limits",
    "line",
    "log_limits",
    "text",
    "x_axis",
    "y_axis",
]
