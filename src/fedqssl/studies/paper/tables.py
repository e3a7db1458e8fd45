"""Tables from finished cells, with the paper's numbers beside ours."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedqssl.federated.algorithms import get_algorithm
from fedqssl.federated.protocol import protocol
from fedqssl.runs.measured import Difference, Measured, paired, rounded
from fedqssl.runs.text_table import Grid, accuracy, to_csv, write_texts
from fedqssl.studies.paper.catalogue import Row, Table
from fedqssl.studies.paper.describe import protocol_line, scale_line, settings, tuned_line
from fedqssl.studies.paper.plan import Plan, measure_row


@dataclass(frozen=True)
class Filled:
    """A table with its numbers."""

    table: Table
    plan: Plan
    found: dict[Row, Measured]

    def difference(self, row: Row) -> tuple[Difference | None, Difference | None]:
        """The table's method with the row's precision and buffer minus the row, global and local, paired by seed."""
        method = self.found.get(replace(row, algorithm=self.table.method))
        if method is None or row.algorithm == self.table.method:
            return None, None
        mine = self.found[row]
        return paired(method.globally, mine.globally), paired(method.locally, mine.locally)

    def records(self) -> list[dict[str, Any]]:
        """The rows of ``<name>.json``; percentages, rounded to four decimals."""
        return [self._record(row) for row in self.table.rows if row in self.found]

    def _record(self, row: Row) -> dict[str, Any]:
        mine, (ours, theirs) = self.found[row], self.table.paper.get((row.algorithm, row.precision), (None, None))
        wide, near = self.difference(row)
        return {
            **row.to_json(),
            **rounded(mine.accuracies()),
            "paper_global": ours,
            "paper_local": theirs,
            "seeds": len(mine.runs),
            "seed_list": sorted(mine.runs),
            f"{self.table.method}_minus_global": None if wide is None else rounded(asdict(wide)),
            f"{self.table.method}_minus_local": None if near is None else rounded(asdict(near)),
            "local_by_bits": {str(b): round(v, 4) for b, v in mine.by_bits().items()},
            "protocol": protocol(self.plan.cell(self.table.dataset, row, 0).config),
        }

    @property
    def title(self) -> str:
        """The dataset and the clients."""
        return f"{self.plan.called(self.table.dataset)}, {self.table.title}"

    def to_json(self) -> dict[str, Any]:
        """The contents of ``<name>.json``."""
        config = self.plan.cell(self.table.dataset, Row(self.table.method, self.table.precision), 0).config
        return {
            "name": self.table.name,
            "title": self.title,
            "scale": self.plan.scale.name,
            "rows": self.records(),
            "missing": [row.to_json() for row in self.table.rows if row not in self.found],
            "protocol": protocol_line(config),
            "settings": settings(self.plan, config),
        }

    def grid(self) -> Grid:
        """Our numbers beside the paper's."""
        compares = bool(self.table.paper)
        ours = ("Global", "Global, paper", "Local", "Local, paper") if compares else ("Global", "Local")
        groups = [[row for row in group if row in self.found] for group in self.table.groups]
        return Grid(
            f"{self.table.name}: {self.title} ({self.plan.scale.name})",
            ("Algorithm", *ours, "Seeds"),
            tuple(tuple(self._cells(row, compares) for row in group) for group in groups if group),
            self._notes(),
            self.table.name,
        )

    def _cells(self, row: Row, compares: bool) -> tuple[str, ...]:
        mine, theirs = self.found[row], self.table.paper.get((row.algorithm, row.precision), (None, None))
        parts = []
        for spread, number in zip((mine.globally, mine.locally), theirs, strict=True):
            parts += [accuracy(spread.mean, spread.deviation), *([accuracy(number)] if compares else [])]
        return (row.title, *parts, str(len(mine.runs)))

    def _notes(self) -> tuple[str, ...]:
        record = self.to_json()
        notes = [
            "Accuracy in percent, mean ± deviation over seeds.",
            scale_line(self.plan),
            f"{record['protocol']}.",
            tuned_line(self.plan, self.found),
        ]
        if record["missing"]:
            rows = ", ".join(Row(**row).title for row in record["missing"])
            notes.append(f"Not run: {rows}.")
        return tuple(note for note in notes if note)

    @property
    def empty(self) -> bool:
        """Whether no row is finished."""
        return not self.found

    def write(self, out: Path) -> list[Path]:
        """``<name>.json``, ``.md``, ``.csv``, ``.tex``; their contents do not depend on when or how fast the cells were run."""
        grids = [grid for grid in (self.grid(), self.differences()) if grid is not None]
        texts = {
            "json": json.dumps(self.to_json(), indent=1) + "\n",
            "md": "\n".join(grid.markdown() for grid in grids),
            "csv": to_csv([_line(record, self.table.method) for record in self.records()]),
            "tex": "\n".join(grid.latex() for grid in grids),
        }
        return write_texts(self.table.name, texts, out)

    def differences(self) -> Grid | None:
        """What the table's method gains over every other row at the same seeds."""
        rows = []
        for row in (row for row in self.table.rows if row in self.found):
            wide, near = self.difference(row)
            if wide is not None or near is not None:
                rows.append((row.title, _interval(wide), _interval(near), str((wide or near).seeds)))  # type: ignore[union-attr]
        if not rows:
            return None
        return Grid(
            f"{get_algorithm(self.table.method).title} minus the others at the same precision, in points",
            ("Algorithm", "Global (95% interval)", "Local (95% interval)", "Seeds in common"),
            (tuple(rows),),
            (
                "Paired by seed: both runs have the same images, split and initial weights. Student's t, from two seeds on.",
            ),
            f"{self.table.name}-differences",
        )


def _line(record: dict[str, Any], method: str) -> dict[str, Any]:
    """A record of the CSV: the differences in columns of their own, lists as text, the rest unchanged."""
    line = {k: v for k, v in record.items() if not isinstance(v, (dict, list))}
    line["seed_list"] = " ".join(map(str, record["seed_list"]))
    for key in (f"{method}_minus_global", f"{method}_minus_local"):
        found = record[key] or {}
        line[key] = found.get("mean")
        line |= {f"{key}_{end}": found.get(end) for end in ("low", "high")}
    return line


def _interval(found: Difference | None) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return f"{found.mean:+.2f}"
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def fill(table: Table, plan: Plan, out: Path) -> Filled:
    """The table's finished rows."""
    found = {row: measure_row(plan, table.dataset, row, out) for row in table.rows}
    return Filled(table, plan, {row: mine for row, mine in found.items() if mine.runs})
