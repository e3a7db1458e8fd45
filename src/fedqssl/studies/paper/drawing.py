"""The style of the figures: markers, line styles and hatches distinguish things in print and for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedqssl.plotting import STYLE, installed, save, subplots
from fedqssl.runs.measured import Measured, rounded
from fedqssl.studies.paper.catalogue import AblationFigure, CostFigure

PARTS: dict[str, tuple[str, ...]] = {
    "operations": ("forward", "backward", "objective"),
    "memory": ("weights", "activations", "gradients", "optimizer"),
}
"""What a bar is made of."""

BLUE, ORANGE, GREEN, VERMILION, SKY, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#000000"
"""Okabe and Ito's colours, distinguishable with every kind of colour vision; their brightness differs, too."""
FILLS = ((BLUE, "///"), (ORANGE, "..."), (GREEN, "xxx"), (SKY, "++"))
LINES = {
    "global": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "local": {"color": VERMILION, "marker": "s", "linestyle": "--"},
}
DIAMONDS = {
    **{"color": BLACK, "marker": "D", "markersize": 6, "markerfacecolor": "white"},
    **{"linestyle": "--", "linewidth": 1, "capsize": 3},
}
UNITS = {
    "operations": ((1e18, "10¹⁸"), (1e15, "10¹⁵"), (1e12, "10¹²"), (1e9, "10⁹"), (1e6, "10⁶"), (1.0, "")),
    "memory": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")),
}
CONFIGURATIONS = {"config1": "configuration 1", "config2": "configuration 2", "full": "full precision"}


def accuracies(mine: Measured) -> dict[str, float | None]:
    """A point's accuracies in percent."""
    return rounded(mine.accuracies())


def draw(figure: AblationFigure | CostFigure, points: Sequence[Mapping[str, Any]], scale: str, out: Path) -> list[Path]:
    """Write ``<name>.png`` and ``<name>.svg``; nothing without matplotlib."""
    if not installed():
        return []
    from matplotlib import rc_context

    canvas, axis = subplots(figsize=(5.2, 3.6))
    with rc_context(STYLE):  # a bar takes its hatches' width when it is made, not when it is saved
        if isinstance(figure, CostFigure):
            _cost(canvas, axis, figure, points)
        else:
            _ablation(canvas, axis, figure, points)
    axis.set_title(f"{figure.short} (scale {scale})", fontsize=10, loc="left")
    return [save(canvas, out / f"{figure.name}.{ending}", dpi=200) for ending in ("png", "svg")]


def _ablation(canvas: Any, axis: Any, figure: AblationFigure, points: Sequence[Mapping[str, Any]]) -> None:
    """Global and local accuracy over the setting's values, or over the server's work that they make."""
    key = "server_operations" if figure.counts_server else figure.setting
    unit, power = _unit("operations", points, key) if figure.counts_server else (1, "")
    several = len(figure.rows) > 1
    for i, row in enumerate(figure.rows):
        mine = [p for p in points if p["algorithm"] == row.algorithm]
        for name, look in LINES.items():
            if any(p[name] is not None for p in mine):
                label = "global accuracy" if name == "global" else "local accuracy (mean of clients)"
                label = f"{row.title}: {name}" if several else label
                fill = {"markerfacecolor": "white", "alpha": 0.75} if i else {}
                places, heights = [p[key] / unit for p in mine], [p[name] for p in mine]
                axis.errorbar(places, heights, yerr=_bars(mine, name), capsize=3, label=label, **look, **fill)
    if figure.logarithmic:
        axis.set_xscale("log")
    if not figure.counts_server:
        values = sorted({p[key] for p in points})
        axis.set_xticks(values, [f"{v:g}" for v in values])
        axis.set_xticks([], minor=True)
    axis.set(xlabel=f"{figure.axis}, {power}".rstrip(", "), ylabel="accuracy, %")
    axis.grid(alpha=0.3)
    canvas.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _unit(quantity: str, points: Sequence[Mapping[str, Any]], key: str) -> tuple[float, str]:
    """The largest unit that the largest amount has at least one of, and its name."""
    largest = max((p[key] for p in points), default=1)
    return next((u, n) for u, n in UNITS[quantity] if largest >= u or u == 1)


def _bars(points: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """Deviations as error bars; None if no point has one."""
    found = [p[f"{name}_deviation"] for p in points]
    return [value or 0.0 for value in found] if any(found) else None


def _cost(canvas: Any, axis: Any, figure: CostFigure, points: Sequence[Mapping[str, Any]]) -> None:
    """Stacked bars of the cost, and the local accuracy on the right."""
    parts = PARTS[figure.quantity]
    largest = max((p["total"] for p in points), default=1)
    unit, name = _unit(figure.quantity, points, "total")
    places = list(range(len(points)))
    below = [0.0] * len(points)
    for part, (colour, hatch) in zip(parts, FILLS, strict=False):
        heights = [p[part] / unit for p in points]
        if any(heights):
            axis.bar(places, heights, 0.5, below, color=colour, hatch=hatch, edgecolor="white", label=part)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    for place, p in zip(places, points, strict=True):
        at = (place, p["total"] / unit)
        axis.annotate(_share(p), at, (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axis.set_xticks(places, [_configuration(p) for p in points], fontsize=8)
    what = "bit operations of a round" if figure.quantity == "operations" else "memory of a client's step"
    axis.set(ylabel=f"{what}, {name}".rstrip(", "), xlim=(-0.6, len(points) - 0.4), ylim=(0, 1.12 * largest / unit))
    right = axis.twinx()
    heights = [p["local"] for p in points]
    right.errorbar(places, heights, yerr=_bars(points, "local"), label="local accuracy (right)", **DIAMONDS)
    right.set(ylabel="local accuracy of Fed-QSSL, %", ylim=(0, 100))
    canvas.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _configuration(point: Mapping[str, Any]) -> str:
    bits = sorted(set(point["bits"]))
    return f"{CONFIGURATIONS.get(point['precision'], point['precision'])}\n{', '.join(map(str, bits))} bits"


def _share(point: Mapping[str, Any]) -> str:
    return "" if point["precision"] == "full" else f"{100 * point['total'] / point['full_precision']:.1f}% of full"
