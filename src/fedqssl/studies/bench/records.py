"""The record of a benchmark: results, what was skipped and why, and the settings; one JSON schema for all.

``{"bench": "step", "results": [{"variant": "fedqssl", "bits": 4, ...}], "skipped": [{"variant", "reason"}],
"settings": {..., "machine": {...}}}``
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedqssl.files import write_atomically

if TYPE_CHECKING:
    from fedqssl.config import RunConfig

Row = Mapping[str, str | int | float | None]
T = TypeVar("T")


class PeerUnavailableError(ImportError):
    """A peer cannot be measured here; the message says why and what to install."""


def import_peer(module: str, hint: str) -> Any:
    """A peer's module, or a :class:`PeerUnavailableError` that ends with the hint."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PeerUnavailableError(f"{module}: {error}; {hint}") from error


@dataclass(frozen=True)
class Skipped:
    """A candidate that was not measured, by name, and why."""

    variant: str
    reason: str


def available(candidates: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], list[Skipped]]:
    """The candidates that can be built here, by name, and those that cannot, with the reason."""
    made: dict[str, T] = {}
    skipped = []
    for name, make in candidates.items():
        try:
            made[name] = make()
        except PeerUnavailableError as error:
            skipped.append(Skipped(name, str(error)))
    return made, skipped


@dataclass(frozen=True)
class Record:
    """One run of one benchmark; every row of ``results`` has the same keys."""

    bench: str
    results: Sequence[Row]
    skipped: Sequence[Skipped] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, with the machine added to the settings."""
        return {
            "bench": self.bench,
            "results": [dict(row) for row in self.results],
            "skipped": [asdict(s) for s in self.skipped],
            "settings": {**self.settings, "machine": machine()},
        }

    def write(self, path: Path) -> None:
        """Write the JSON form in one rename, making parent folders; an older file is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n").encode())


def value_rows(found: Mapping[str, float]) -> list[Row]:
    """Results of a benchmark that measures several quantities once: name and value."""
    return [{"what": what, "value": value} for what, value in found.items()]


def settings_of(config: RunConfig, *names: str) -> dict[str, Any]:
    """Settings of a run that a benchmark records."""
    return {name: getattr(config, name) for name in names}


def cpu_model() -> str:
    """The processor's name as the kernel reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def machine() -> dict[str, Any]:
    """Everything that a number depends on besides the options of the benchmark."""
    import torch

    from fedqssl import __version__
    from fedqssl.quant import kernels

    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedqssl": __version__,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "malloc": {key: value for key, value in os.environ.items() if key.startswith("MALLOC_")},
        "kernels": json.loads(json.dumps(kernels.describe(), default=str)),  # what JSON lacks becomes its text
    }
