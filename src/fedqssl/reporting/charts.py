"""The kinds of charts: lines over rounds, points, rows of points, bars, and heat maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedqssl.reporting.scales import AxisScale, limits, log_limits
from fedqssl.reporting.svg import WIDTH, Drawing, Format, Mark, dot, el, line, text, x_axis, y_axis
from fedqssl.reporting.theme import counted, percent_tick, tick

LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 14.0, 40.0
END = WIDTH - RIGHT
HEIGHT = 230.0
LEVELS = 8
"""Shades of a heat map."""
MANY_CELLS = 3000
"""Above this number of cells a heat map shows its numbers by row, not by cell."""
MANY_ROWS = 40
"""Above this number rows have no names beside them."""


@dataclass(frozen=True)
class Series:
    """A line: its name, points (x, y), mark, and whether it stands out; ``tip`` is shown on hover."""

    name: str
    points: Sequence[tuple[float, float]]
    mark: Mark
    strong: bool = False
    tip: str | None = None

    def known(self) -> list[tuple[float, float]]:
        """Points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(y)]


@dataclass(frozen=True)
class Level:
    """A horizontal line with a label, which is placed above the plot if there are many lines.

    ``course`` is its value by round where it changes; then the line has steps, and ``value`` is the last one.
    """

    value: float
    words: str
    above: bool = False
    course: Sequence[tuple[float, float]] = ()


def _strokes(series: Series, x: AxisScale, y: AxisScale, form: Format) -> list[Markup]:
    points, kind = series.known(), series.mark.kind
    if not points:
        return []
    title, found = el("title", series.tip or series.name), []
    if len(points) > 1:
        d = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        if not series.strong:
            found.append(el("path", title, d=d, class_="reach"))
        weight = " strong" if series.strong else ""
        found.append(el("path", None if series.strong else title, d=d, class_=f"line {kind}{weight}"))
    if series.strong and len(points) <= 120:
        many = len(points) > 30  # then points are only seen when pointed at
        mark, size = (Mark("circle", f"{kind} hit"), 4.0) if many else (series.mark, 3.2)
        found += [dot(x(a), y(b), mark, f"{series.name}, round {a:g}: {form(b)}", size) for a, b in points]
    elif len(points) == 1:
        (a, b) = points[0]
        found.append(dot(x(a), y(b), series.mark, series.tip or f"{series.name}: {form(b)}", 3.5))
    return found


def _level(level: Level, x: AxisScale, y: AxisScale) -> Markup:
    """A level's line, with a step half-way between rounds where it changes."""
    if not level.course:
        return line(LEFT, y(level.value), END, y(level.value), "level")
    d = f"M{LEFT:.1f} {y(level.course[0][1]):.1f}"
    for (before, _), (number, value) in itertools.pairwise(level.course):
        d += f"H{x((before + number) / 2):.1f}V{y(value):.1f}"
    return el("path", d=f"{d}H{END:.1f}", class_="level")


def line_chart(series: Sequence[Series], form: Format, *, levels: Sequence[Level] = (), zero: bool = False) -> Drawing:
    """Lines over rounds; strong ones on top, with points."""
    heights = [v for level in levels for v in (level.value, *(y for _, y in level.course))]
    low, high = limits([*(y for s in series for _, y in s.known()), *heights], zero=zero)
    places = [a for s in series for a, _ in s.known()] or [0.0, 1.0]
    x, y = AxisScale(min(places), max(places), LEFT, END), AxisScale(low, high, HEIGHT - BOTTOM, TOP)
    whole = [t for t in x.ticks(6) if t == int(t)] if x.high > x.low else []
    parts = [
        *y_axis(y, LEFT, END, form),
        *x_axis(x, HEIGHT - BOTTOM, lambda v: f"{v:g}", "round", ticks=whole or [x.low]),
    ]
    for s in (s for s in series if not s.strong):
        parts += _strokes(s, x, y, form)
    free = 0.0
    for level in sorted(levels, key=lambda level: -level.value):
        at = y(level.value)
        place = TOP - 4 if level.above else max(at - 4 if at > TOP + 10 else at + 12, free)
        free = place + 12  # words of levels that nearly coincide stand below each other
        parts += [_level(level, x, y), text(END, place, level.words, at="end", kind="said")]
    for s in (s for s in series if s.strong):
        parts += _strokes(s, x, y, form)
    return Drawing(HEIGHT, parts)


@dataclass(frozen=True)
class Point:
    """A point of a scatter chart, or of a row (which has no ``y``)."""

    x: float
    mark: Mark
    tip: str
    y: float = 0.0
    span: tuple[float, float] | None = None


def scatter(
    points: Sequence[Point],
    x_label: str,
    *,
    x_form: Format = tick,
    log: bool = False,
    ticks: Sequence[float] | None = None,
) -> Drawing:
    """Shares over numbers; a point's ``span`` is drawn as a whisker. Places on the x axis may be given (``ticks``)."""
    xs = [p.x for p in points]
    x = AxisScale(*(log_limits(xs) if log else limits(xs, pad=0.08)), LEFT, END, log)
    low, high = limits([v for p in points for v in (p.y, *(p.span or ()))], pad=0.04)
    y = AxisScale(max(low, 0.0), min(high, 1.04), HEIGHT - BOTTOM, TOP)
    parts = [*y_axis(y, LEFT, END, percent_tick), *x_axis(x, HEIGHT - BOTTOM, x_form, x_label, ticks=ticks)]
    for p in points:
        if p.span and all(map(math.isfinite, p.span)):
            parts.append(line(x(p.x), y(p.span[0]), x(p.x), y(p.span[1]), f"whisker {p.mark.kind}"))
    return Drawing(HEIGHT, [*parts, *(dot(x(p.x), y(p.y), p.mark, p.tip, 4.2) for p in points)])


@dataclass(frozen=True)
class ChartRow:
    """A labelled row of points on a common axis; ``joined`` draws a line from the first to the last."""

    name: str
    points: Sequence[Point]
    joined: bool = False


def _shortened(words: str, room: int) -> str:
    return words if len(words) <= room else f"{words[: room // 2 - 1]}…{words[-(room - room // 2) :]}"


def _alike(names: Sequence[str]) -> int:
    """How many first letters all names share."""
    return sum(1 for _ in itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))


def _around_difference(names: Sequence[str], room: int) -> dict[str, str]:
    """Names that look alike when their middles are cut: the part in which they differ, with what is around it."""
    first = _alike(names)
    last = _alike([name[first:][::-1] for name in names])
    found = {}
    for name in names:
        spare = max(room - 2 - (len(name) - last - first), 0)
        start = max(min(first - spare // 2, len(name) - room + 1), 0)
        end = start + room - (start > 0)
        cut = name[start : end - 1] + "…" if end < len(name) else name[start:]
        found[name] = f"…{cut}" if start else cut
    return found


def apart(names: Sequence[str], room: int) -> list[str]:
    """Names of at most ``room`` letters; those that differ still do when they are shortened."""
    short = {name: _shortened(name, room) for name in names}
    for shorten in (_around_difference, _numbered):
        alike: dict[str, list[str]] = {}
        for name, words in short.items():
            alike.setdefault(words, []).append(name)
        for group in alike.values():
            short |= shorten(group, room) if len(group) > 1 else {}
    return [short[name] for name in names]


def _numbered(names: Sequence[str], room: int) -> dict[str, str]:
    """The last resort: numbers behind what fits."""
    ends = [f"…{i}" for i in range(1, len(names) + 1)]
    return {name: name[: room - len(end)] + end for name, end in zip(names, ends, strict=True)}


def rows_chart(
    rows: Sequence[ChartRow],
    form: Format,
    x_label: str,
    *,
    log: bool = False,
    bounds: tuple[float, float] | None = None,
    tall: float = 420,
) -> Drawing:
    """Rows of points; long names are placed above their row; if there are very many rows, names are shown only on hover."""
    named, longest = len(rows) <= MANY_ROWS, max((len(r.name) for r in rows), default=0)
    above = named and longest > 22
    left = 14 + 6.0 * longest if named and not above else 14.0
    step = 32.0 if above else 18.0 if named else max(2.0, tall / len(rows))
    bottom = TOP + step * len(rows)
    values = [p.x for r in rows for p in r.points]
    x = AxisScale(*(bounds or (log_limits(values) if log else limits(values))), left, END - 4, log)
    size = 4.2 if named else max(2.0, min(3.2, step * 0.55))
    small = " tiny" if size < 3 else ""
    parts = [*(line(x(t), TOP, x(t), bottom, "rule") for t in x.ticks(5)), *x_axis(x, bottom, form, x_label)]
    short = apart([row.name for row in rows], 54)
    for i, row in enumerate(rows):
        y = TOP + step * (i + (0.75 if above else 0.5))
        if above:
            parts.append(text(left, y - 10, short[i]))
        elif named:
            parts.append(text(left - 8, y + 3.5, row.name, at="end"))
        if row.joined and len(row.points) > 1:
            first, *_, last = row.points
            parts.append(line(x(first.x), y, x(last.x), y, f"stem {last.mark.kind}"))
        for p in row.points:
            if math.isfinite(p.x):
                parts.append(dot(x(p.x), y, Mark(p.mark.shape, p.mark.kind + small), p.tip, size))
    return Drawing(bottom + BOTTOM, parts)


@dataclass(frozen=True)
class Bar:
    """A bar from zero, with its name and further text above it."""

    name: str
    value: float
    words: str
    kind: str
    tip: str


def _box(x: float, y: float, width: float, height: float, kind: str, tip: str | None = None, **more: float) -> Markup:
    """A rectangle."""
    return el("rect", el("title", tip) if tip else None, x=x, y=y, width=width, height=height, class_=kind, **more)


def bar_chart(bars: Sequence[Bar], *, top: float | None = None) -> Drawing:
    """Horizontal bars; the text is above each bar, so that it may be long."""
    step, left = 38.0, 14.0
    x = AxisScale(0.0, top or max((b.value for b in bars), default=1.0) or 1.0, left, END)
    parts = []
    for i, bar in enumerate(bars):
        y = 8 + step * i
        parts += [
            text(left, y + 11, bar.name, kind="name"),
            text(END, y + 11, bar.words, at="end"),
            _box(left, y + 17, END - left, 11, "trough", rx=3),
            _box(left, y + 17, max(x(bar.value) - left, 1.5), 11, f"bar mark {bar.kind}", bar.tip, rx=3),
        ]
    return Drawing(8 + step * len(bars), parts)


def shade_legend(top: float, unit: str) -> list[tuple[str, Mark]]:
    """What the lightest, the middle and the strongest shade stand for; the page's colours say which is which."""
    middle = round(top * ((LEVELS // 2) / LEVELS) ** 2)
    values = [
        (1, 1),
        *([(middle, LEVELS // 2)] if 1 < middle < top else []),
        *([(int(top), LEVELS)] if top > 1 else []),
    ]
    return [(counted(value, unit), Mark("square", f"s{shade}")) for value, shade in values]


def _shade(value: float, top: float) -> int:
    """1..LEVELS for positive counts, by square root, so that small counts are visible."""
    return max(1, min(LEVELS, math.ceil(LEVELS * math.sqrt(value / top)))) if value > 0 else 0


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], tips: Sequence[str], unit: str
) -> Drawing:
    """Cells of ``LEVELS`` shades; row ``i`` shows ``tips[i]`` on hover, a cell its number if there are not too many."""
    named = len(rows) <= MANY_ROWS
    left = 10 + 6.0 * min(18, max((len(r) for r in rows), default=0)) if named else 8.0
    step = (18.0 if len(rows) <= 24 else 13.0) if named else max(4.0, 480 / len(rows))
    cell = (END - left) / max(len(columns), 1)
    top = max((v for row in values for v in row), default=0.0) or 1.0
    by_cell = len(rows) * len(columns) <= MANY_CELLS
    gap = 1.0 if by_cell and min(cell, step) > 6 else 0.0
    names, cells, short = [], [], apart(rows, 18)
    shades: dict[int, list[str]] = {}
    for i, row in enumerate(values):
        y = TOP + step * i
        if named:
            names.append(text(left - 6, y + step / 2 + 3.5, short[i], at="end"))
        for j, value in enumerate(row):
            shade, x = _shade(value, top), left + cell * j
            if shade and by_cell:
                tip = f"{rows[i]}, {columns[j]}: {counted(int(value), unit)}"
                cells.append(_box(x, y, cell - gap, step - gap, f"mark s{shade}", tip))
            elif shade:
                shades.setdefault(shade, []).append(f"M{x:.1f} {y:.1f}h{cell:.1f}v{step:.1f}h-{cell:.1f}z")
        if not by_cell:
            cells.append(_box(left, y, cell * len(columns), step, "reach-box", tips[i]))
    back = _box(left, TOP, cell * len(columns), step * len(rows), "trough")
    drawn = [el("path", d="".join(d), class_=f"mark s{shade}") for shade, d in sorted(shades.items())]
    foot, labels = _column_names(columns, left, cell, TOP + step * len(rows))
    return Drawing(TOP + step * len(rows) + foot, [back, *drawn, *cells, *names, *labels])


def _column_names(columns: Sequence[str], left: float, cell: float, bottom: float) -> tuple[float, list[Markup]]:
    """The names below a heat map, turned if they are wider than a cell; and the room that they take."""
    longest = max((len(c) for c in columns), default=0)
    turned = longest * 6.2 > cell - 2
    found, short = [], apart(columns, 12)
    for j in range(0, len(columns), max(1, math.ceil(13 / cell))):
        x, words = left + cell * (j + 0.5), short[j]
        if turned:
            found.append(text(x + 3, bottom + 12, words, at="end", turn=-45))
        else:
            found.append(text(x, bottom + 15, words, at="middle"))
    return min(78.0, 14 + 5.4 * min(longest, 12)) if turned else 22.0, found


__all__ = [
    "Bar",
    "ChartRow",
    "Level",
    "Point",
    "Series",
    "apart",
    "bar_chart",
    "heat_map",
    "line_chart",
    "rows_chart",
    "scatter",
    "shade_legend",
]
