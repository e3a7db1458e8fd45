"""The result of a run: ``result.json`` as an object, and its final table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True)
class ClientResult:
    """One client's row."""

    bits: int
    samples: int
    local_accuracy: float | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class RunResult:
    """The figures of a finished run; accuracies are None where there are no labels."""

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
        """The final table: a row per client, then the totals."""
        table = Table("client", "bits", "images", "local accuracy", "sent", "received", title=self.headline())
        for name, c in self.clients.items():
            table.add_row(
                name,
                str(c.bits),
                str(c.samples),
                _percent(c.local_accuracy),
                f"{c.bytes_up / 1024:.0f} KiB",
                f"{c.bytes_down / 1024:.0f} KiB",
            )
        return table

    def headline(self) -> str:
        """One line: algorithm, data, accuracies."""
        return (
            f"{self.algorithm} on {self.dataset}, {self.rounds} rounds: global accuracy {_percent(self.global_accuracy)}, "
            f"mean local accuracy {_percent(self.local_accuracy)}"
        )


def _percent(value: float | None) -> str:
    return "no labels" if value is None else f"{100 * value:.1f}%"
