"""Cells: the runs behind tables, figures and sweeps, each a normal run folder with a name of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from fedqssl import files
from fedqssl.config import RunConfig, load_run_config
from fedqssl.config.load import accuracy_settings
from fedqssl.data.from_config import settled
from fedqssl.runs.images_digest import digest_of
from fedqssl.runs.result import RunResult

AGAIN = "restore it, or delete the run to have it run again"
"""What to do about a damaged file of a run."""


class CellError(ValueError):
    """A cell cannot be used; the message is one line and says what to do."""


class State(Enum):
    """Progress of a cell."""

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

    def ended(self, out: Path) -> None:
        """What is to be done with a finished run; nothing by default."""


def differences(found: RunConfig, wanted: RunConfig) -> list[str]:
    """``key found, now wanted`` for every setting that affects the result, including the seed."""
    a, b = ({**accuracy_settings(c), "seed": c.seed} for c in (found, wanted))
    missing = "unset"
    return [
        f"{key} {a.get(key, missing)}, now {b.get(key, missing)}" for key in sorted(a | b) if a.get(key) != b.get(key)
    ]


def state_of(cell: Cell, out: Path) -> State:
    """The state of a cell; if it was run with other settings or on other images, that is an error.

    A cell notes how its data were written and a digest of the images, so that the same images in another place will do.
    """
    folder = cell.folder(out)
    if not (folder / "config.toml").is_file():
        return State.NEW
    found = load_run_config(folder)
    moved = found.model_copy(update={"data": cell.config.data, "buffer": cell.config.buffer})
    differing = _differing(found, cell.config)
    if differing and (_differing(moved, cell.config) or not _same_images(folder, cell.config)):
        raise CellError(
            f"{folder} was run with other settings ({'; '.join(differing)}); choose another --out, or delete that folder"
        )
    return State.DONE if (folder / "result.json").is_file() else State.BEGUN


def _differing(found: RunConfig, wanted: RunConfig) -> list[str]:
    """As :func:`differences`; a run on images without labels may have settled for other settings."""
    return differences(found, wanted) and differences(found, settled(wanted)[0])


def _same_images(folder: Path, config: RunConfig) -> bool:
    """Whether a configuration names the images that a run noted the digest of; False if it noted none."""
    path = folder / "environment.json"
    noted = read_json(path) if path.is_file() else None
    digest = noted.get("images_sha256") if isinstance(noted, dict) else None
    return digest is not None and digest == digest_of(settled(config)[0])


def read_result(folder: Path) -> RunResult:
    """The result of a finished run, or a CellError."""
    try:
        return RunResult.read(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CellError(
            f"{folder / 'result.json'} cannot be read ({error}); delete it to evaluate the run again"
        ) from error


def read_json(path: Path) -> Any:
    """A JSON file of a run, or a CellError."""
    return files.read_json(path, CellError, AGAIN)


def unreadable(path: Path, error: Exception) -> CellError:
    """The error for a damaged file of a run."""
    return CellError(f"{path} cannot be read ({error}); {AGAIN}")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Lock a folder of cells, so that no two commands write the same cell; the lock is released however this process ends."""
    lock = out / "cells" / ".lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise CellError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error
    busy = CellError(f"another command is working in {out}; wait until it ends, or choose another --out")
    with files.locked(lock, busy):
        yield


__all__ = [
    "Cell",
    "CellError",
    "State",
    "claimed",
    "differences",
    "read_json",
    "read_result",
    "state_of",
    "unreadable",
]
