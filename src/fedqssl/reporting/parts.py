"""The parts of a page as plain values; ``templates/parts.html`` lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedqssl.reporting.svg import Drawing, Mark


@dataclass(frozen=True)
class Figure:
    """A card with a drawing.

    Args:
        name: its id on the page.
        title: its heading.
        label: what the drawing shows, for screen readers; also the caption of its numbers.
        drawing: one of :mod:`fedqssl.reporting.charts`.
        note: a line below the heading.
        legend: what the marks stand for.
        head: columns of the table of its numbers; if empty, there is no table.
        rows: of that table.
    """

    name: str
    title: str
    label: str
    drawing: Drawing
    note: str = ""
    legend: Sequence[tuple[str, Mark]] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


@dataclass(frozen=True)
class Section:
    """A section of the page: figures, the text above them, warnings; or why it is empty."""

    figures: Sequence[Figure | None] = ()
    lead: str = ""
    alerts: Sequence[str] = ()
    empty: str = ""
    loose: bool = False


__all__ = ["Figure", "Section"]
