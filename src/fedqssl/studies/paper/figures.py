"""Figures 1 to 5 from finished cells: the points as data; ``drawing`` draws them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedqssl.cost import Ledger, ledger, sizes_of
from fedqssl.data.splits import Partition
from fedqssl.federated.algorithms import get_algorithm
from fedqssl.runs.cells import Cell, read_json, unreadable
from fedqssl.runs.measured import Measured, at_common_seeds, measure, seeds_in
from fedqssl.runs.text_table import Grid, accuracy, bits_text, to_csv, write_texts
from fedqssl.studies.paper import drawing, paper
from fedqssl.studies.paper.catalogue import AblationFigure, CostFigure, Row
from fedqssl.studies.paper.describe import protocol_line, scale_line, settings
from fedqssl.studies.paper.plan import Plan, measure_row
from fedqssl.units import bytes_text, operations_text

Figure = AblationFigure | CostFigure

COUNTED = {
    "operations": "Bit operations of all clients in one round, by the ledger (docs/cost.md), for the first seed's split.",
    "memory": "Bytes that a training step holds, mean over clients, by the ledger (docs/cost.md), for the first seed's split.",
}


@dataclass(frozen=True)
class Plotted:
    """A figure's points: plain records, in order."""

    figure: Figure
    plan: Plan
    points: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The contents of ``<name>.json``."""
        config = self.plan.cell(self.figure.dataset, self.figure.rows[0], 0).config
        return {
            "name": self.figure.name,
            "title": self.figure.title,
            "scale": self.plan.scale.name,
            "points": self.points,
            "paper_says": paper.SAYS[self.figure.name],
            "protocol": protocol_line(config),
            "settings": settings(self.plan, config),
        }

    def grid(self) -> Grid:
        """The points as a table."""
        title = f"{self.figure.name}: {self.figure.title} ({self.plan.scale.name})"
        record = self.to_json()
        notes = [f"The paper: {record['paper_says']}.", scale_line(self.plan), f"{record['protocol']}."]
        if isinstance(self.figure, CostFigure):
            columns, rows = _cost_text(self.figure, self.points)
            bits = "; ".join(f"{p['precision']}: {bits_text(p['bits'])}" for p in self.points)
            notes.insert(0, f"{COUNTED[self.figure.quantity]} {bits}.")
        else:
            work = ("Server work",) if self.figure.counts_server else ()
            setting = self.figure.setting.rpartition(".")[2]
            columns = ("Algorithm", setting, "Global", "Local", "Weights", "Seeds", *work)
            rows = [_ablation_text(self.figure, p) for p in self.points]
            notes[-1] = f"{self.figure.setting} varies; otherwise {notes[-1]}"
            if work:
                notes.insert(0, "Server work: bit operations in all rounds, by the ledger (docs/cost.md).")
        return Grid(title, columns, (tuple(rows),), tuple(notes), self.figure.name)

    @property
    def empty(self) -> bool:
        """Whether no point is finished."""
        return not self.points

    def write(self, out: Path) -> list[Path]:
        """``<name>.json``, ``.csv``, ``.md``, ``.tex``; and ``.png`` and ``.svg`` if matplotlib is installed."""
        grid = self.grid()
        texts = {
            "json": json.dumps(self.to_json(), indent=1) + "\n",
            "csv": to_csv([{k: bits_text(v) if k == "bits" else v for k, v in p.items()} for p in self.points]),
            "md": grid.markdown(),
            "tex": grid.latex(),
        }
        paths = write_texts(self.figure.name, texts, out)
        return [*paths, *drawing.draw(self.figure, self.points, self.plan.scale.name, out)]


def _accuracies(point: dict[str, Any]) -> tuple[str, str]:
    wide, near = (accuracy(point[name], point[f"{name}_deviation"]) for name in ("global", "local"))
    return wide, near


def _ablation_text(figure: AblationFigure, point: dict[str, Any]) -> tuple[str, ...]:
    weights = point["weights"]
    spread = f"{weights[0]:.3f}-{weights[1]:.3f}" if weights else "–"
    name = get_algorithm(point["algorithm"]).title
    work = (operations_text(point["server_operations"]),) if figure.counts_server else ()
    return (name, f"{point[figure.setting]:g}", *_accuracies(point), spread, str(point["seeds"]), *work)


def _cost_text(figure: CostFigure, points: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    text = operations_text if figure.quantity == "operations" else bytes_text
    parts = [part for part in drawing.PARTS[figure.quantity] if any(p[part] for p in points)]
    columns = ("Bits", *parts, "total", "of full", "Local")
    rows = []
    for p in points:
        share = f"{100 * p['total'] / p['full_precision']:.1f}%" if p["full_precision"] else "–"
        local = accuracy(p["local"], p["local_deviation"])
        amounts = (text(p[part]) for part in (*parts, "total"))
        rows.append((p["precision"], *amounts, share, local))
    return columns, rows


def plot(figure: Figure, plan: Plan, out: Path) -> Plotted:
    """The points whose runs are finished."""
    if isinstance(figure, AblationFigure):
        return Plotted(figure, plan, _ablation(figure, plan, out))
    rows = at_common_seeds([measure_row(plan, figure.dataset, row, out) for row in figure.rows])
    points = [_cost_point(figure, plan, row, mine, out) for row, mine in zip(figure.rows, rows, strict=True)]
    return Plotted(figure, plan, [point for point in points if point is not None])


def _ablation(figure: AblationFigure, plan: Plan, out: Path) -> list[dict[str, Any]]:
    of: dict[tuple[Row, float], list[Cell]] = {}
    for seed in seeds_in(out):
        for row, value, cell in plan.points(figure, seed):
            of.setdefault((row, value), []).append(cell)
    found = dict(zip(of, at_common_seeds([measure(cells, out) for cells in of.values()]), strict=True))
    points = []
    for (row, value), mine in sorted(found.items(), key=lambda item: (figure.rows.index(item[0][0]), item[0][1])):
        cells = [cell for cell in of[row, value] if cell.config.seed in mine.runs]
        if not cells:
            continue
        point = {
            "algorithm": row.algorithm,
            figure.setting: value,
            **drawing.accuracies(mine),
            "weights": weights_in(cells, out),
            "seeds": len(mine.runs),
        }
        if figure.counts_server:
            point["server_operations"] = ledger_of(cells[0], out).total().server_operations
        points.append(point)
    return points


def weights_in(cells: Sequence[Cell], out: Path) -> list[float] | None:
    """The smallest and the largest aggregation weight in any round of these runs; None where nothing is averaged."""
    found: list[float] = []
    for cell in cells:
        path = cell.folder(out) / "metrics.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found += [weight for line in lines for weight in line["weights"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(path, error) from error
    return [round(min(found), 6), round(max(found), 6)] if found else None


def _cost_point(figure: CostFigure, plan: Plan, row: Row, mine: Measured, out: Path) -> dict[str, Any] | None:
    """Cost by the ledger for the split of the first finished seed, and accuracy over the seeds."""
    if not mine.runs:
        return None
    first = plan.cell(figure.dataset, row, min(mine.runs))
    costs = ledger_of(first, out)
    amounts, full = (_amounts(figure.quantity, costs, at_full) for at_full in (False, True))
    return {
        "precision": row.precision,
        "bits": list(first.config.bits),
        **amounts,
        "full_precision": full["total"],
        **drawing.accuracies(mine),
        "seeds": len(mine.runs),
    }


def ledger_of(cell: Cell, out: Path) -> Ledger:
    """The ledger of a finished run, for the images that its clients actually had."""
    folder = cell.folder(out)
    found, data = read_json(folder / "partition.json"), read_json(folder / "data.json")
    own = isinstance(found["buffer"], int)  # the number of the server's own images
    partition = Partition.from_json({**found, "buffer": []} if own else found)
    channels, height, width = data["image"]
    sizes = sizes_of(partition, (channels, height, width), data["classes"])
    return ledger(cell.config, replace(sizes, buffer=found["buffer"]) if own else sizes)


def _amounts(quantity: str, costs: Ledger, full: bool) -> dict[str, int]:
    """Bit operations of all clients in one round, or the bytes that a client's training step holds, mean over clients."""
    if quantity == "operations":
        operations = costs.per_round(full).operations
        return {**asdict(operations), "total": operations.total}
    clients = [c.memory for c in (costs.full if full else costs.clients).values()]
    parts = {part: round(statistics.fmean(m.parts()[part] for m in clients)) for part in drawing.PARTS[quantity]}
    return {**parts, "total": sum(parts.values())}
