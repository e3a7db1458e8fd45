"""The result of a run: ``result.json`` as an object, and its final table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from rich import box
from rich.table import Table
from rich.text import Text

from fedqssl.evaluation.controls import SHORT, WORDS, Measured, best_control, verdict
from fedqssl.files import is_folder_name, parse_json, printable
from fedqssl.runs.checksums import check_sum
from fedqssl.units import bytes_text


def _known(controls: Mapping[str, float]) -> Mapping[str, float]:
    unknown = sorted(controls.keys() - WORDS.keys())
    if unknown or not controls:
        raise ValueError(f"unknown control {unknown[0]!r}" if unknown else "no control")
    return controls


def _name(name: str) -> str:
    if not is_folder_name(name):
        raise ValueError("not a client's name")
    return name


Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e18)]
Line = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(printable)]
Shares = Annotated[Mapping[str, Share], AfterValidator(_known)]
"""Types of ``result.json``: a folder of somebody else's may hold anything."""


MIN_SPREAD = 10
MANY = 100
"""Above this number of clients, tables have a row per bitwidth."""


@dataclass(frozen=True)
class ClientResult:
    """One client's row; ``controls`` are accuracies of simple classifiers on its own images, ``cluster`` whose model it has."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    bits: Annotated[int, Field(strict=True, ge=1, le=32)]
    samples: Count
    local_accuracy: Share | None
    bytes_up: Count
    bytes_down: Count
    controls: Shares | None = None
    cluster: Count | None = None

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

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    folder: Path
    algorithm: Line
    dataset: Line
    seed: Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 64)]
    rounds: Count
    global_accuracy: Share | None
    local_accuracy: Share | None
    clients: dict[Annotated[str, AfterValidator(_name)], ClientResult]
    bytes_up: Count
    bytes_down: Count
    client_seconds: Seconds
    server_seconds: Seconds
    peak_memory_bytes: Count
    protocol: Line
    controls: Shares | None = None
    steps: Count | None = None
    knn_gain: Annotated[float, Field(strict=True, ge=-1, le=1)] | None = None

    def local_controls(self) -> dict[str, float]:
        """Mean over the clients of each control; empty if none were measured."""
        known = [c.controls for c in self.clients.values() if c.controls is not None]
        common = [name for name in known[0] if all(name in c for c in known)] if known else []
        return {name: fmean(c[name] for c in known) for name in common}

    def clusters(self) -> dict[int, list[str]]:
        """Clients by cluster; empty if the run has none."""
        found = sorted({c.cluster for c in self.clients.values() if c.cluster is not None})
        return {number: sorted(n for n, c in self.clients.items() if c.cluster == number) for number in found}

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
        """Read a finished run's folder.

        Raises:
            ValueError: ``result.json`` is not a result, or was modified after the run.
        """
        path, again = folder / "result.json", f"delete it and run fedqssl run --resume {folder} to create it again"
        try:
            data = path.read_bytes()
            values = parse_json(data)
            found = _RESULT.validate_python({**values, "folder": folder} if isinstance(values, dict) else values)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ValueError(f"{path} is not a result ({why}); {again}") from error
        except ValueError as error:
            raise ValueError(f"{path} is not a result ({error}); {again}") from error
        check_sum(folder, path.name, data)
        return found

    def distributions(self) -> tuple[list[str], list[list[str]]]:
        """The clients of each bitwidth together: names of the columns, and rows. Accuracies are those that were measured."""
        head = ["bits", "clients", "took part", "images", "measured", "local accuracy", "untrained", "traffic"]
        rows = []
        for bits in sorted({c.bits for c in self.clients.values()}):
            of = [c for c in self.clients.values() if c.bits == bits]
            known = [c.local_accuracy for c in of if c.local_accuracy is not None]
            untrained = [c.controls["untrained"] for c in of if c.controls and "untrained" in c.controls]
            figures = bits, len(of), sum(c.bytes_up > 0 for c in of), round(median(c.samples for c in of)), len(known)
            shares = _spread(known), percent(fmean(untrained)) if untrained else "-"
            rows.append([f"{n:,}" for n in figures] + [*shares, bytes_text(sum(c.bytes_up + c.bytes_down for c in of))])
        return head, rows

    def table(self) -> Table:
        """The closing table: a row per client, in large fleets one per bitwidth; it fits into 80 columns."""
        title, caption = Text(self.headline()), self.verdict() or None
        table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        if len(self.clients) > MANY:
            head, rows = self.distributions()
            for column in head:
                table.add_column(column, justify="right")
            for row in rows:
                table.add_row(*row)
            return table
        table.add_column("client", no_wrap=True)
        for column in ("bits", "images", "local accuracy", "untrained", "best control", "traffic"):
            table.add_column(column, justify="right")
        for name, c in self.clients.items():
            accuracies = percent(c.local_accuracy), c.untrained(), c.control()
            table.add_row(Text(name), str(c.bits), str(c.samples), *accuracies, bytes_text(c.bytes_up + c.bytes_down))
        return table

    def headline(self) -> str:
        """One line: algorithm, data, accuracies."""
        rounds = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        accuracies = (
            f"global accuracy {percent(self.global_accuracy)}, mean local accuracy {percent(self.local_accuracy)}"
        )
        return f"{self.algorithm} on {self.dataset}, {rounds}: {accuracies}"


_RESULT = TypeAdapter(RunResult)


def _spread(values: Sequence[float]) -> str:
    """``45.0% (31.2 to 60.0)``: the mean, and what all but a tenth of the clients on either side have."""
    if len(values) < MIN_SPREAD:
        return percent(fmean(values) if values else None)
    low, *_, high = (100 * share for share in quantiles(values, n=10))
    return f"{percent(fmean(values))} ({low:.1f} to {high:.1f})"


def percent(value: float | None) -> str:
    """``45.0%``, or ``not measured``."""
    return "not measured" if value is None else f"{100 * value:.1f}%"
