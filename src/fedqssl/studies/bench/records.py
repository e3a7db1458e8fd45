"""What a bench leaves behind: results, what was skipped and why, and the settings; one JSON schema for all.

``{"bench": "step", "results": [{"variant": "fedqssl", "bits": 4, ...}], "skipped": [{"variant", "reason"}],
"settings": {..., "machine": {...}}}``
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = Mapping[str, str | int | float | None]


@dataclass(frozen=True)
class Skipped:
    """A candidate that was not measured, by name, and why."""

    variant: str
    reason: str


@dataclass(frozen=True)
class Record:
    """One run of one bench; every row of ``results`` has the same keys."""

    bench: str
    results: Sequence[Row]
    skipped: Sequence[Skipped] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, with the machine added to the settings."""
        return {
            "bench": self.bench,
            "results": [dict(row) for row in self.results],
            "skipped": [{"variant": s.variant, "reason": s.reason} for s in self.skipped],
            "settings": {**self.settings, "machine": machine()},
        }

    def write(self, path: Path) -> None:
        """Write the JSON form in one rename, making parent folders; an older file is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def cpu_model() -> str:
    """The processor's name as the kernel reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def machine() -> dict[str, Any]:
    """Everything that a number depends on and that is not an option of the bench."""
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
        "kernels": {key: _plain(value) for key, value in kernels.describe().items()},
    }


def _plain(value: object) -> Any:
    """A JSON value for anything; what JSON lacks becomes its text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
