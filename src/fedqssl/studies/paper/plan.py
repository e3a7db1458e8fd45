"""Which runs a table or figure needs: a row, a seed and a scale make a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedqssl.config import load_config
from fedqssl.config.keys import layered
from fedqssl.runs.cells import Cell
from fedqssl.runs.measured import Measured, measure, seeds_in
from fedqssl.studies.attacks.engine import PREFIX, AttackedCell
from fedqssl.studies.paper.catalogue import (
    DATASETS,
    EMBEDDED,
    AblationFigure,
    AttackedRow,
    AttackTable,
    Experiment,
    Row,
    chosen,
)
from fedqssl.studies.paper.scales import Scale

AS_IN_THE_PAPER = {"evaluation.classifier": "sgd", "evaluation.probe": "fixed", "evaluation.controls": "none"}
"""Clients train their classifiers by SGD in their bits; the probe is that of earlier cells; tables have their own controls."""

FOREIGN_IMAGES = 500
"""Images of a buffer that is not from the clients' dataset: as many as scale ``medium`` takes from it elsewhere."""


@dataclass(frozen=True)
class Plan:
    """The scale and data of a reproduction.

    Args:
        scale: how large the experiments are.
        data: where the images of each of the paper's datasets are; by default as in the preset.
    """

    scale: Scale
    data: dict[str, str]

    def called(self, dataset: str) -> str:
        """The dataset's name for titles; says so if embedded images stand in for it."""
        base, name = self.scale.bases[dataset], DATASETS[dataset]
        images = self.data.get(dataset) or load_config(base.preset, base.changes).data
        return f"{images} in place of {name}" if images in EMBEDDED else name

    def cell(
        self,
        dataset: str,
        row: Row,
        seed: int,
        setting: tuple[str, float] | None = None,
        also: tuple[str, str] | None = None,
    ) -> Cell:
        """The run of a row at a seed; ``setting`` and ``also`` are a point of an ablation, or the plain cell."""
        base = self.scale.bases[dataset]
        changes = layered(AS_IN_THE_PAPER, base.changes, self.scale.algorithms.get(row.algorithm, {}))
        label = base.label
        if dataset in self.data:
            changes["data"] = self.data[dataset]
            label = base.label if self.data[dataset] == load_config(base.preset, base.changes).data else dataset
        if row.foreign:
            changes |= {"buffer": self.data.get("cifar100", self.scale.foreign), "buffer_images": FOREIGN_IMAGES}
        bits = self.scale.bits[row.precision]
        changes |= {"algorithm": row.algorithm, "bits": list(bits), "clients": len(bits), "seed": seed}
        config = load_config(base.preset, changes)
        point = ""
        if setting is not None:
            points = {setting[0]: f"{setting[1]:g}", **dict([also] if also else [])}
            moved = load_config(base.preset, layered(changes, points))
            point = "" if moved == config else "".join(f"-{key}={value}" for key, value in points.items())
            config = moved
        buffer = "-foreign" if row.foreign else ""
        return Cell(f"{label}-{row.precision}-{row.algorithm}{buffer}{point}-seed{seed}", config)

    def attacked(self, row: AttackedRow, seed: int) -> AttackedCell:
        """The run of a row of the attacks at a seed; the engine's name says which attack."""
        base = self.scale.attacks
        if base is None:
            raise ValueError(f"attacks are not run at scale {self.scale.name}")
        bits = self.scale.bits[row.precision]
        changes = layered(
            base.changes, {"algorithm": row.algorithm, "bits": list(bits), "clients": len(bits), "seed": seed}
        )
        changes |= {"aggregation.robust": row.robust, "engine": f"{PREFIX}{row.attack}"}
        changes |= {"aggregation.batch_norm": "average" if row.robust == "none" else "buffer"}
        return AttackedCell(f"{base.label}-{row.method}-{row.attack}-seed{seed}", load_config(base.preset, changes))

    def points(self, figure: AblationFigure, seed: int) -> list[tuple[Row, float, Cell]]:
        """The cells of an ablation by row and the setting's value."""
        values = self.scale.points[figure.name]
        return [
            (row, v, self.cell(figure.dataset, row, seed, (figure.setting, v), figure.also))
            for row in figure.rows
            for v in values
        ]

    def cells(self, experiment: Experiment, seeds: Sequence[int], only: frozenset[str] | None = None) -> list[Cell]:
        """All cells of a table or figure; ``only``: of these algorithms."""
        rows = chosen(experiment, only)
        if isinstance(experiment, AttackTable):
            return [self.attacked(row, seed) for seed in seeds for row in rows if isinstance(row, AttackedRow)]
        if isinstance(experiment, AblationFigure):
            return [cell for seed in seeds for row, _, cell in self.points(experiment, seed) if row in rows]
        return [self.cell(experiment.dataset, row, seed) for seed in seeds for row in rows]


def measure_row(plan: Plan, dataset: str, row: Row, out: Path) -> Measured:
    """A row's finished runs at all seeds."""
    return measure([plan.cell(dataset, row, seed) for seed in seeds_in(out)], out)
