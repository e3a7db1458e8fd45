"""Elements, axes and marks of the charts; all are 360 units wide, so that text keeps its size on a phone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

from fedqssl.reporting.scales import AxisScale

WIDTH = 360.0
Format = Callable[[float], str]


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


def y_axis(scale: AxisScale, left: float, right: float, form: Format) -> list[Markup]:
    """Grid lines and their values at the left."""
    found = []
    for tick in scale.ticks():
        y = scale(tick)
        found += [line(left, y, right, y, "rule"), text(left - 6, y + 3.5, form(tick), at="end")]
    return found


def _apart(places: Sequence[tuple[float, str]]) -> bool:
    """Whether no two neighbouring labels touch."""
    return all(b - a > 3.3 * (len(v) + len(w)) + 5 for (a, v), (b, w) in itertools.pairwise(places))


def x_axis(
    scale: AxisScale, bottom: float, form: Format, label: str, ticks: Sequence[float] | None = None
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


@dataclass(frozen=True)
class Drawing:
    """The inside of an SVG element that is ``WIDTH`` units wide: its elements, the lowest first."""

    height: float
    parts: Sequence[Markup]


class Mark(NamedTuple):
    """How something is marked: its shape, which repeats the information of its colour, and CSS classes."""

    shape: str
    kind: str


SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")


def dot(x: float, y: float, mark: Mark, tip: str | None = None, size: float = 4.5) -> Markup:
    """A mark at a place; ``tip`` is shown on hover."""
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


__all__ = ["SHAPES", "WIDTH", "Drawing", "Format", "Mark", "dot", "el", "line", "text", "x_axis", "y_axis"]
