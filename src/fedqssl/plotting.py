"""The one place that sets up matplotlib (the ``plots`` extra); if it is not installed, callers skip their figures.

Figures are made without pyplot, so a notebook that calls us keeps its backend and settings, no figure has to be
closed, and threads may draw at the same time.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fedqssl.files import write_atomically

STYLE = {"svg.hashsalt": "fedqssl", "svg.fonttype": "none", "hatch.linewidth": 0.6}
"""How figures are saved: the same figure gives the same bytes, and the text of an SVG stays text."""


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


__all__ = ["STYLE", "installed", "new_figure", "save", "subplots"]
