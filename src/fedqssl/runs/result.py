"""The result of a run: ``result.json`` as an object, and its final table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich import box
from rich.table import Table

from fedqssl.evaluation.controls import SHORT, Measured, best_control, verdict
from fedqssl.units import bytes_text


@dataclass(frozen=True)
class ClientResult:
    """One client's row; ``controls`` are accuracies of simple classifiers on its own images."""

    bits: int
    samples: int
    local_accuracy: float | None
    bytes_up: int
    bytes_down: int
    controls: Mapping[str, float] | None = None

    def control(self) -> str:
        """The best control with its name: ``45.0% (HOG)``."""
        if self.controls is None:
            return "-"
        name, best = best_control(self.controls)
        return f"{percent(best)} ({SHORT[name]})"

    def untrained(self) -> str:
        """Accuracy of the untrained network in the client's bits, with the same kind of classifier."""
        found = (self.controls or {}).get("untrained")
        return "-" if found is None else percent(found)


@dataclass(frozen=True)
class RunResult:
    """The figures of a finished run; accuracies and ``controls`` are None where they were not measured.

    ``steps`` is how many training steps, one after the other, its model is made of; ``knn_gain`` its last kNN accuracy minus the
    untrained network's.
    """

    folder: Path
    algorithm: str
    dataset: str
    seed: int
    rounds: int
    global_accuracy: float | None
    local_accuracy: float | None
    clients: dict[str, ClientResult]
    bytes_up: int
    bytes_down: int
    client_seconds: float
    server_seconds: float
    peak_memory_bytes: int
    protocol: str
    controls: Mapping[str, float] | None = None
    steps: int | None = None
    knn_gain: float | None = None

    def local_controls(self) -> dict[str, float]:
        """Mean over the clients of each control; empty if none were measured."""
        known = [c.controls for c in self.clients.values() if c.controls is not None]
        return {name: fmean(c[name] for c in known) for name in known[0]} if known else {}

    def measured(self) -> list[Measured]:
        """The global and the mean local accuracy with their controls, where these were measured."""
        found = (
            ("global accuracy", self.global_accuracy, self.controls or {}),
            ("mean local accuracy", self.local_accuracy, self.local_controls()),
        )
        return [Measured(name, value, controls) for name, value, controls in found if value is not None and controls]

    def verdict(self) -> str:
        """Whether the run beat its controls, and what to try if it did not; empty if that was not measured."""
        found = self.measured()
        return verdict(found, self.steps, self.knn_gain) if found else ""

    def to_json(self) -> str:
        """The text of ``result.json``."""
        values = asdict(self)
        del values["folder"]
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> RunResult:
        """Read a finished run's folder."""
        try:
            values = json.loads((folder / "result.json").read_text())
            values["clients"] = {n: ClientResult(**c) for n, c in values["clients"].items()}
            return cls(folder=folder, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            again = f"delete it and run fedqssl run --resume {folder} to create it again"
            raise ValueError(f"{folder / 'result.json'} is not a result ({error}); {again}") from error

    def table(self) -> Table:
        """The closing table: a row per client; it fits into 80 columns."""
        table = Table(title=self.headline(), caption=self.verdict() or None, box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("client", no_wrap=True)
        for column in ("bits", "images", "local accuracy", "untrained", "best control", "traffic"):
            table.add_column(column, justify="right")
        for name, c in self.clients.items():
            accuracies = percent(c.local_accuracy), c.untrained(), c.control()
            table.add_row(name, str(c.bits), str(c.samples), *accuracies, bytes_text(c.bytes_up + c.bytes_down))
        return table

    def headline(self) -> str:
        """One line: algorithm, data, accuracies."""
        rounds = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        accuracies = (
            f"global accuracy {percent(self.global_accuracy)}, mean local accuracy {percent(self.local_accuracy)}"
        )
        return f"{self.algorithm} on {self.dataset}, {rounds}: {accuracies}"


def percent(value: float | None) -> str:
    """``45.0%``, or ``not measured``."""
    return "not measured" if value is None else f"{100 * value:.1f}%"
