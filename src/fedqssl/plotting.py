"""The one place that sets up matplotlib (the ``plots`` extra); if it is not installed, callers skip their figures.

Figures are made without pyplot, so a notebook that calls us keeps its backend and settings, no figure has to be
closed, and threads may draw at the same time.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedqssl.files import write_atomically

STYLE = {"svg.hashsalt": "fedqssl", "svg.fonttype": "none", "hatch.linewidth": 0.6}
"""How figures are saved: the same figure gives the same bytes, and the text of an SVG stays text."""

FULL = 32
"""Bits of full precision."""
LIGHT = ((232, 119, 34), (205, 56, 98), (128, 60, 168), (38, 52, 140))
"""From few bits to many, on a light page."""
FULL_COLOUR = "#5c6470"
INK, SOFT, RULE, TROUGH = "#1c2127", "#545d69", "#e4e5e1", "#eeeeea"
KNN = "#0b7a62"
SHADES = ("#dbe9f6", "#bad6eb", "#93c3e0", "#67abd4", "#4190c4", "#2373b1", "#0b5596", "#083370")
"""Of heat maps, for few to many: the report's own colours."""
ORDERS = 12.0
"""Counts that differ by more than this factor want a logarithmic scale."""


def between(ramp: Sequence[tuple[int, int, int]], share: float) -> str:
    """The colour at a share (0 to 1) of the way along some colours."""
    at = share * (len(ramp) - 1)
    i = min(int(at), len(ramp) - 2)
    mixed = (round(a + (b - a) * (at - i)) for a, b in zip(ramp[i], ramp[i + 1], strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def bit_colours(bits: Iterable[int], ramp: Sequence[tuple[int, int, int]] = LIGHT) -> dict[int, str]:
    """One colour per bitwidth, the same in the report and in its plots; not for full precision."""
    low = sorted(set(bits) - {FULL})
    return {b: between(ramp, i / (len(low) - 1) if len(low) > 1 else 0.75) for i, b in enumerate(low)}


def by_orders(counts: Sequence[float]) -> bool:
    """Whether positive counts differ so much that a linear scale would hide the small ones."""
    known = [c for c in counts if c > 0]
    return bool(known) and max(known) > ORDERS * min(known)


def dress(axis: Any, title: str, x: str = "", y: str = "") -> None:
    """An axis in the look of the report: a bold title at the left, quiet numbers, no box."""
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axis.set_xlabel(x, color=SOFT, fontsize=9)
    axis.set_ylabel(y, color=SOFT, fontsize=9)
    axis.tick_params(colors=SOFT, labelsize=8, length=0)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)


def installed() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(figsize: tuple[float, float]) -> Any:
    """An empty figure with automatic layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=figsize, layout="constrained")


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, like ``pyplot.subplots``; ``options`` are passed to ``Figure.subplots``."""
    figure = new_figure(figsize)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Any, path: Path, dpi: int = 120) -> Path:
    """Write a figure in the format of the file's suffix, atomically."""
    import matplotlib

    data = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        form = path.suffix[1:]
        figure.savefig(data, format=form, dpi=dpi, metadata={"Date": None} if form == "svg" else None)
    write_atomically(path, data.getvalue())
    return path


__all__ = [
    "FULL",
    "FULL_COLOUR",
    "INK",
    "KNN",
    "LIGHT",
    "RULE",
    "SHADES",
    "SOFT",
    "STYLE",
    "TROUGH",
    "between",
    "bit_colours",
    "by_orders",
    "dress",
    "installed",
    "new_figure",
    "save",
    "subplots",
]
