"""A small table as text: Markdown, LaTeX, rich for terminals; and records as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedqssl.files import write_atomically

_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"},
        **{"±": r"$\pm$", "β": r"$\beta$", "−": r"$-$", "<": r"$<$", ">": r"$>$"},
    }
)


@dataclass(frozen=True)
class Grid:
    """Text in rows and columns.

    Args:
        title: what it shows.
        columns: their headers; the first is set flush left, the others flush right.
        groups: rows, in groups that a line separates.
        notes: lines under it.
        label: for LaTeX references.
    """

    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...]
    notes: tuple[str, ...] = ()
    label: str = ""

    def markdown(self) -> str:
        """A pipe table under a heading; groups follow each other."""
        lines = [f"## {self.title}", "", _piped(self.columns), _piped(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [_piped(row) for group in self.groups for row in group]
        return "\n".join([*lines, *(f"\n{_unpiped(note)}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """A ``table`` environment that needs no package."""
        body = [" & ".join(map(tex, self.columns)) + r" \\ \hline"]
        for group in self.groups:
            body += [" & ".join(map(tex, row)) + r" \\" for row in group]
            body[-1] += r" \hline"
        shape = "l" + "r" * (len(self.columns) - 1)
        label = rf"\label{{{self.label}}}" if self.label else ""
        notes = [f"% {note}" for note in self.notes]
        head = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{shape}}}", r"\hline"]
        foot = [r"\end{tabular}", rf"\caption{{{tex(self.title)}}}{label}", *notes, r"\end{table}"]
        return "\n".join([*head, *body, *foot]) + "\n"

    def rich(self) -> Table:
        """For a terminal, without the notes."""
        table = Table(title=Text(self.title), title_justify="left")
        for i, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if i else "left", no_wrap=not i, overflow="fold")
        for group in self.groups:
            for row in group:
                table.add_row(*map(Text, row), end_section=row is group[-1])
        return table


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_unpiped(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _unpiped(text: str) -> str:
    return " ".join(text.split())


def tex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return text.translate(_LATEX)


def to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """One line per record; None becomes an empty field. Columns are those of all records, in the order of their first use."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in record.items()} for record in records)
    return text.getvalue()


def accuracy(mean: float | None, deviation: float | None = None) -> str:
    """``41.23 ± 0.45`` in percent; a dash if there is none."""
    if mean is None:
        return "–"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def bits_text(bits: Sequence[int]) -> str:
    """``(4, 4, 6)`` -> ``2x4,6``, in the clients' order; one bitwidth for all is that number."""
    if len(set(bits)) == 1:
        return str(bits[0])
    runs: list[list[int]] = []
    for b in bits:
        if runs and runs[-1][1] == b:
            runs[-1][0] += 1
        else:
            runs.append([1, b])
    return ",".join(f"{count}x{b}" if count > 1 else str(b) for count, b in runs)


def write_texts(name: str, texts: dict[str, str], out: Path) -> list[Path]:
    """Write ``<name>.<ending>`` for every ending."""
    paths = [out / f"{name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomically(path, text.encode())
    return paths


__all__ = ["Grid", "accuracy", "bits_text", "tex", "to_csv", "write_texts"]
