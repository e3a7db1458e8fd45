"""Cells: the runs behind tables, figures and sweeps, each a normal run folder with a name of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

from fedqssl.config import RunConfig, load_config
from fedqssl.config.load import accuracy_settings
from fedqssl.experiments.catalogue import DATASETS, EMBEDDED, AblationFigure, Experiment, Row
from fedqssl.experiments.scales import Scale
from fedqssl.runs import RunResult


class CellError(ValueError):
    """A cell cannot be used; the message is one line and says what to do."""


class State(Enum):
    """How far a cell is."""

    NEW = "new"
    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True)
class Cell:
    """One run: a folder's name and its configuration."""

    name: str
    config: RunConfig

    def folder(self, out: Path) -> Path:
        """Where the run is."""
        return out / "cells" / self.name


@dataclass(frozen=True)
class Plan:
    """What a reproduction is asked for, but for which experiments.

    Args:
        scale: how large.
        data: by the paper's dataset: where its images are; by default as the preset says.
    """

    scale: Scale
    data: dict[str, str]

    def called(self, dataset: str) -> str:
        """The dataset as titles print it; where embedded images stand in for it, they say so."""
        base, name = self.scale.bases[dataset], DATASETS[dataset]
        images = self.data.get(dataset) or load_config(base.preset, base.changes).data
        return f"{images} in place of {name}" if images in EMBEDDED else name

    def cell(self, dataset: str, row: Row, seed: int, setting: tuple[str, float] | None = None) -> Cell:
        """The run of a row at a seed; ``setting`` is a point of an ablation, which is the plain cell if it changes nothing."""
        base = self.scale.bases[dataset]
        changes: dict[str, Any] = {**base.changes, **self.scale.algorithms.get(row.algorithm, {})}
        label = base.label
        if dataset in self.data:
            changes["data"] = self.data[dataset]
            label = base.label if self.data[dataset] == load_config(base.preset, base.changes).data else dataset
        bits = self.scale.bits[row.precision]
        changes |= {"algorithm": row.algorithm, "bits": list(bits), "clients": len(bits), "seed": seed}
        config = load_config(base.preset, changes)
        point = ""
        if setting is not None:
            key, value = setting
            moved = load_config(base.preset, {**changes, key: value})
            point = "" if moved == config else f"-{key}={value:g}"
            config = moved
        return Cell(f"{label}-{row.precision}-{row.algorithm}{point}-seed{seed}", config)

    def points(self, figure: AblationFigure, seed: int) -> list[tuple[Row, float, Cell]]:
        """The cells of an ablation by row and the setting's value."""
        values = self.scale.points[figure.name]
        return [
            (row, v, self.cell(figure.dataset, row, seed, (figure.setting, v))) for row in figure.rows for v in values
        ]

    def cells(self, experiment: Experiment, seeds: Sequence[int], only: frozenset[str] | None = None) -> list[Cell]:
        """All cells of a table or figure; ``only``: of these algorithms."""
        rows = [row for row in experiment.rows if only is None or row.algorithm in only]
        if isinstance(experiment, AblationFigure):
            return [cell for seed in seeds for row, _, cell in self.points(experiment, seed) if row in rows]
        return [self.cell(experiment.dataset, row, seed) for seed in seeds for row in rows]


def differences(found: RunConfig, wanted: RunConfig) -> list[str]:
    """``key found, now wanted`` of every setting that matters to the result, the seed included."""
    a, b = ({**accuracy_settings(c), "seed": c.seed} for c in (found, wanted))
    missing = "unset"
    return [
        f"{key} {a.get(key, missing)}, now {b.get(key, missing)}" for key in sorted(a | b) if a.get(key) != b.get(key)
    ]


def state_of(cell: Cell, out: Path) -> State:
    """How far a cell is; one that was run with other settings is an error."""
    folder = cell.folder(out)
    if not (folder / "config.toml").is_file():
        return State.NEW
    differing = differences(load_config(folder / "config.toml"), cell.config)
    if differing:
        raise CellError(
            f"{folder} was run with other settings ({'; '.join(differing)}); choose another --out, or remove that folder"
        )
    return State.DONE if (folder / "result.json").is_file() else State.BEGUN


def read_result(folder: Path) -> RunResult:
    """The result of a finished run, or a CellError."""
    try:
        return RunResult.read(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CellError(
            f"{folder / 'result.json'} cannot be read ({error}); remove it to evaluate the run anew"
        ) from error


def read_json(path: Path) -> Any:
    """A JSON file of a run, or a CellError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> CellError:
    """What to say of a damaged file of a run."""
    return CellError(f"{path} cannot be read ({error}); put it back, or remove the run to have it run again")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold a folder of cells, so that no two commands write the same cell; it is let go however this process ends."""
    import fcntl

    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
        lock: IO[str] = (out / "cells" / ".lock").open("w")
    except OSError as error:
        raise CellError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CellError(
                f"another command is working in {out}; wait until it ends, or choose another --out"
            ) from None
        yield


__all__ = [
    "Cell",
    "CellError",
    "Plan",
    "State",
    "claimed",
    "differences",
    "read_json",
    "read_result",
    "state_of",
    "unreadable",
]
