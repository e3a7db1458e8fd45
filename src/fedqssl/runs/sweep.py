"""A grid of settings, where each combination is a cell that can be resumed; ends in a comparison."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedqssl.config import load_config
from fedqssl.config.load import parse_words
from fedqssl.runs import Progress
from fedqssl.runs.cells import Cell, CellError, claimed
from fedqssl.runs.compare import Comparison, compare
from fedqssl.runs.run_cells import run_cells
from fedqssl.runs.text_table import write_texts

SEPARATOR = ";"
NOT_COLUMNS = ("seed", "algorithm", "bits", "workers", "threads", "data_dir", "engine", "track", "evaluation.knn_every")


@dataclass(frozen=True)
class Sweep:
    """A validated grid: its cells in order, and the settings that vary."""

    cells: tuple[Cell, ...]
    keys: tuple[str, ...]

    def columns(self) -> list[str]:
        """Settings that need a column in the table; bit lists of different lengths also vary the number of clients."""
        found = [key for key in self.keys if key not in NOT_COLUMNS]
        return (
            [*found, "clients"] if len({c.config.clients for c in self.cells}) > 1 and "clients" not in found else found
        )


def plan_sweep(source: str, words: Sequence[str]) -> Sweep:
    """The cells of a grid.

    Args:
        source: a preset or a TOML file.
        words: ``key=value`` settings for all cells, and ``key=value;value;...`` axes of the grid.

    Raises:
        ValueError: one line that says what is wrong.

    Example:
        >>> [cell.name for cell in plan_sweep("smoke", ["beta=0.1;5", "rounds=1", "seed=0;1"]).cells]
        ['beta=0.1_seed=0', 'beta=0.1_seed=1', 'beta=5_seed=0', 'beta=5_seed=1']
    """
    values = parse_words(words)
    axes = {key: _values(key, value) for key, value in values.items() if SEPARATOR in value}
    if not axes:
        raise ValueError(
            "a sweep needs a setting with several values, like 'beta=0.1;0.5;5' (in quotes, for the shell)"
        )
    fixed = [f"{key}={value}" for key, value in values.items() if key not in axes]
    cells = []
    for combination in itertools.product(*axes.values()):
        chosen = [f"{key}={value}" for key, value in zip(axes, combination, strict=True)]
        cells.append(Cell(cell_name(chosen), load_config(source, [*fixed, *chosen])))
    _check_distinct(cells)
    return Sweep(tuple(cells), tuple(axes))


def _values(key: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(SEPARATOR)]
    if values[-1] == "" and len(values) > 2:
        values.pop()  # a separator at the end
    if "" in values:
        raise ValueError(f"{key} has an empty value in {text!r}; write values like {key}=1;2;3")
    if len(set(values)) < len(values):
        raise ValueError(f"{key} has a repeated value in {text!r}")
    return values


def _check_distinct(cells: Sequence[Cell]) -> None:
    seen: dict[object, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.config, cell)
        if other is not cell:
            raise ValueError(f"{other.name} and {cell.name} are the same run; leave one of the values out")


def cell_name(chosen: Sequence[str]) -> str:
    """``["beta=0.1", "lr=0.3"]`` -> ``beta=0.1_lr=0.3``; where characters had to be replaced, a digest is added."""
    plain = "_".join(chosen)
    name = re.sub(r"[^\w.,=+-]", "-", plain)
    if name == plain and len(name) <= 100:
        return name
    return f"{name[:90]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def sweep(grid: Sweep, out: Path, jobs: int | None, progress: Progress) -> tuple[Comparison | None, CellError | None]:
    """Run the grid; returns the table (also ``sweep.md``, ``.csv``, ``.tex``) and the error to end with, if any."""
    with claimed(out):
        error = run_cells(grid.cells, out, jobs, progress)
        done = [folder for cell in grid.cells if ((folder := cell.folder(out)) / "result.json").is_file()]
        if not done:
            return None, error
        table = compare(done, grid.columns())
        texts = {"md": table.text("markdown"), "csv": table.text("csv"), "tex": table.text("latex")}
        write_texts("sweep", texts, out)
    return table, error


__all__ = ["Sweep", "cell_name", "plan_sweep", "sweep"]
