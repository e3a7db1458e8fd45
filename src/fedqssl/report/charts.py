"""The kinds of charts: lines over rounds, points, rows of points, bars, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedqssl.report.html import Markup, el
from fedqssl.report.svg import WIDTH, Format, Scale, drawing, limits, line, log_limits, mark, text, x_axis, y_axis

LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 14.0, 40.0
LEVELS = 8
"""Shades of a heat map."""
MANY_CELLS = 3000
"""Above this a heat map tells its numbers by row, not by cell."""


@dataclass(frozen=True)
class Series:
    """A line: its name, points (x, y), CSS kind, and whether it stands out; ``tip`` is told when it is pointed at."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str
    strong: bool = False
    tip: str | None = None
    shape: str = "circle"

    def known(self) -> list[tuple[float, float]]:
        """Points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(y)]


@dataclass(frozen=True)
class Level:
    """A horizontal line with words at it, or above the plot if there is a thicket of lines."""

    value: float
    words: str
    above: bool = False


def _strokes(series: Series, x: Scale, y: Scale, form: Format, unit: str) -> list[Markup]:
    points = series.known()
    if not points:
        return []
    d = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
    title = el("title", series.tip or series.name)
    found = []
    if len(points) > 1:
        kind = f"line {series.kind}{' strong' if series.strong else ''}"
        if not series.strong:
            found.append(el("path", title, d=d, class_="reach"))
        found.append(el("path", title if not series.strong else None, d=d, class_=kind))
    if series.strong and len(points) <= 120:
        many = len(points) > 30  # then points are only seen when pointed at
        kind, shape = (f"{series.kind} hit", "circle") if many else (series.kind, series.shape)
        found += [
            mark(x(a), y(b), shape, kind, f"{series.name}, {unit} {a:g}: {form(b)}", 4.0 if many else 3.2)
            for a, b in points
        ]
    elif len(points) == 1:
        (a, b) = points[0]
        found.append(mark(x(a), y(b), series.shape, series.kind, series.tip or f"{series.name}: {form(b)}", 3.5))
    return found


def line_chart(
    label: str,
    series: Sequence[Series],
    form: Format,
    *,
    levels: Sequence[Level] = (),
    zero: bool = False,
    height: float = 230,
    unit: str = "round",
) -> Markup:
    """Lines over whole numbers; strong ones on top, with points."""
    values = [y for s in series for _, y in s.known()] + [level.value for level in levels]
    low, high = limits(values, zero=zero)
    places = [a for s in series for a, _ in s.known()] or [0.0, 1.0]
    x = Scale(min(places), max(places), LEFT, WIDTH - RIGHT)
    y = Scale(low, high, height - BOTTOM, TOP)
    whole = [t for t in x.ticks(6) if t == int(t)] if x.high > x.low else [x.low]
    parts = [
        *y_axis(y, LEFT, WIDTH - RIGHT, form),
        *x_axis(x, height - BOTTOM, lambda v: f"{v:g}", unit, ticks=whole or [x.low]),
    ]
    for s in (s for s in series if not s.strong):
        parts += _strokes(s, x, y, form, unit)
    for level in levels:
        at = y(level.value)
        place = TOP - 4 if level.above else at - 4 if at > TOP + 10 else at + 12
        parts += [
            line(LEFT, at, WIDTH - RIGHT, at, "level"),
            text(WIDTH - RIGHT, place, level.words, at="end", kind="said"),
        ]
    for s in (s for s in series if s.strong):
        parts += _strokes(s, x, y, form, unit)
    return drawing(height, label, *parts)


@dataclass(frozen=True)
class Point:
    """A point of a scatter chart or a row."""

    x: float
    y: float
    shape: str
    kind: str
    tip: str
    hollow: bool = False
    error: float = 0.0


def scatter(
    label: str,
    points: Sequence[Point],
    x_form: Format,
    y_form: Format,
    x_label: str,
    *,
    log: bool = False,
    ticks: Sequence[float] | None = None,
    height: float = 230,
) -> Markup:
    """Points; ``error`` draws a whisker up and down. Places on the x axis may be given (``ticks``)."""
    xs = [p.x for p in points]
    low, high = log_limits(xs) if log else limits(xs, pad=0.08)
    x = Scale(low, high, LEFT, WIDTH - RIGHT, log)
    bounds = limits([p.y + e for p in points for e in (p.error, -p.error)], pad=0.04)
    y = Scale(max(bounds[0], 0.0), min(bounds[1], 1.04), height - BOTTOM, TOP)
    parts = [*y_axis(y, LEFT, WIDTH - RIGHT, y_form), *x_axis(x, height - BOTTOM, x_form, x_label, ticks=ticks)]
    for p in points:
        if p.error:
            parts.append(
                line(x(p.x), y(max(p.y - p.error, y.low)), x(p.x), y(min(p.y + p.error, y.high)), f"whisker {p.kind}")
            )
    parts += [mark(x(p.x), y(p.y), p.shape, p.kind, p.tip, 4.2, p.hollow) for p in points]
    return drawing(height, label, *parts)


@dataclass(frozen=True)
class Row:
    """A labelled row of points on a common axis; ``joined`` draws a line from the first to the last."""

    name: str
    points: Sequence[Point]
    joined: bool = False


def _shortened(words: str, room: int) -> str:
    return words if len(words) <= room else f"{words[: room // 2 - 1]}…{words[-(room - room // 2) :]}"


def rows_chart(
    label: str,
    rows: Sequence[Row],
    form: Format,
    x_label: str,
    *,
    log: bool = False,
    bounds: tuple[float, float] | None = None,
    tall: float = 420,
) -> Markup:
    """Rows of points; long names stand above their row, and more than 40 rows lose them (they are told when pointed at)."""
    named, longest = len(rows) <= 40, max((len(r.name) for r in rows), default=0)
    above = named and longest > 22
    left = 14 + 6.0 * longest if named and not above else 14.0
    step = 32.0 if above else 18.0 if named else max(2.0, tall / len(rows))
    height = TOP + step * len(rows) + BOTTOM
    values = [p.x for r in rows for p in r.points]
    low, high = bounds or (log_limits(values) if log else limits(values))
    x = Scale(low, high, left, WIDTH - RIGHT - 4, log)
    bottom = height - BOTTOM
    parts: list[Markup] = [line(x(t), TOP, x(t), bottom, "rule") for t in x.ticks(5)]
    parts += x_axis(x, bottom, form, x_label)
    for i, row in enumerate(rows):
        y = TOP + step * (i + (0.75 if above else 0.5))
        if above:
            parts.append(text(left, y - 10, _shortened(row.name, 54)))
        elif named:
            parts.append(text(left - 8, y + 3.5, row.name, at="end"))
        if row.joined and len(row.points) > 1:
            ends = [p.x for p in row.points]
            parts.append(line(x(ends[0]), y, x(ends[-1]), y, f"stem {row.points[-1].kind}"))
        size = 4.2 if named else max(2.0, min(3.2, step * 0.55))
        small = " tiny" if size < 3 else ""
        parts += [
            mark(x(p.x), y, p.shape, p.kind + small, p.tip, size, p.hollow) for p in row.points if math.isfinite(p.x)
        ]
    return drawing(height, label, *parts)


@dataclass(frozen=True)
class Bar:
    """A bar from zero, with words at its end."""

    name: str
    value: float
    words: str
    kind: str
    tip: str


def bar_chart(label: str, bars: Sequence[Bar], *, top: float | None = None) -> Markup:
    """Horizontal bars; the words stand above each bar, so that none is too long."""
    step, left = 38.0, 14.0
    high = top or max((b.value for b in bars), default=1.0) or 1.0
    x = Scale(0.0, high, left, WIDTH - RIGHT)
    parts: list[Markup] = []
    for i, bar in enumerate(bars):
        y = 8 + step * i
        parts += [text(left, y + 11, bar.name, kind="name"), text(WIDTH - RIGHT, y + 11, bar.words, at="end")]
        parts.append(el("rect", x=left, y=y + 17, width=WIDTH - RIGHT - left, height=11.0, rx=3, class_="trough"))
        width = max(x(bar.value) - left, 1.5)
        parts.append(
            el(
                "rect",
                el("title", bar.tip),
                x=left,
                y=y + 17,
                width=width,
                height=11.0,
                rx=3,
                class_=f"bar mark {bar.kind}",
            )
        )
    return drawing(8 + step * len(bars), label, *parts)


def _shade(value: float, top: float) -> int:
    """1..LEVELS for what is there, by its square root, so that small counts are seen."""
    return max(1, min(LEVELS, math.ceil(LEVELS * math.sqrt(value / top)))) if value > 0 else 0


def heat_map(
    label: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    tips: Sequence[str],
    unit: str,
) -> Markup:
    """Cells of ``LEVELS`` shades; row ``i`` tells ``tips[i]`` when pointed at, a cell its number if there are not too many."""
    named = len(rows) <= 40
    room = min(18, max((len(r) for r in rows), default=0)) if named else 0
    left = 10 + 6.0 * room if named else 8.0
    step = (18.0 if len(rows) <= 24 else 13.0) if named else max(4.0, 480 / len(rows))
    cell = (WIDTH - RIGHT - left) / max(len(columns), 1)
    longest = max((len(c) for c in columns), default=0)
    turned = longest * 6.2 > cell - 2
    shown = [i for i in range(len(columns)) if i % max(1, math.ceil(13 / cell)) == 0]
    foot = min(78.0, 14 + 5.4 * min(longest, 12)) if turned else 22.0
    bottom = TOP + step * len(rows)
    top = max((v for row in values for v in row), default=0.0) or 1.0
    gap = 1.0 if min(cell, step) > 6 else 0.0
    by_cell = len(rows) * len(columns) <= MANY_CELLS
    parts: list[Markup] = [el("rect", x=left, y=TOP, width=cell * len(columns), height=bottom - TOP, class_="trough")]
    shades: dict[int, list[str]] = {}
    for i, row in enumerate(values):
        y = TOP + step * i
        if named:
            parts.append(text(left - 6, y + step / 2 + 3.5, _shortened(rows[i], 18), at="end"))
        for j, value in enumerate(row):
            shade = _shade(value, top)
            if not shade:
                continue
            x = left + cell * j
            if by_cell:
                title = el("title", f"{rows[i]}, {columns[j]}: {value:g} {unit}")
                parts.append(el("rect", title, x=x, y=y, width=cell - gap, height=step - gap, class_=f"mark s{shade}"))
            else:
                shades.setdefault(shade, []).append(f"M{x:.1f} {y:.1f}h{cell:.1f}v{step:.1f}h-{cell:.1f}z")
        if not by_cell:
            parts.append(
                el(
                    "rect",
                    el("title", tips[i]),
                    x=left,
                    y=y,
                    width=cell * len(columns),
                    height=step,
                    class_="reach-box",
                )
            )
    drawn = [el("path", d="".join(d), class_=f"mark s{shade}") for shade, d in sorted(shades.items())]
    for j in shown:
        x = left + cell * (j + 0.5)
        words = _shortened(columns[j], 12)
        parts.append(
            text(x + 3, bottom + 12, words, at="end", turn=-45) if turned else text(x, bottom + 15, words, at="middle")
        )
    return drawing(bottom + foot, label, parts[0], *drawn, *parts[1:])


__all__ = ["Bar", "Level", "Point", "Row", "Series", "bar_chart", "heat_map", "line_chart", "rows_chart", "scatter"]
