"""Find the runs in a folder, at any depth."""

from __future__ import annotations

import os
from pathlib import Path

from fedqssl.runs.folder import RunError


def is_run(path: Path) -> bool:
    """Whether a folder holds a run: it has a ``config.toml``, as other folders may, and a file that only runs have."""
    marks = ("checkpoints", "partition.json", "result.json")
    return (path / "config.toml").is_file() and any((path / name).exists() for name in marks)


def find_runs(path: Path) -> list[Path]:
    """The run in this folder, or all runs below it, sorted by name; the insides of runs and hidden folders are not searched.

    Raises:
        RunError: if ``path`` is not a folder, or holds no run.
    """
    if not path.is_dir():
        why = "it is a file" if path.exists() else "it does not exist"
        raise RunError(f"{path} is not a folder ({why}); give a run's folder, or a folder of runs")
    found = []
    for place, folders, _ in os.walk(path):
        if is_run(Path(place)):
            found.append(Path(place))
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    if not found:
        raise RunError(f"there is no run in {path}; start one with fedqssl run --out {path / 'a'}")
    return found


def next_folder(source: str, parent: Path = Path("runs")) -> Path:
    """``runs/<preset>-1``, or with the first number above those that exist; of a TOML file its name without the ending."""
    name = Path(source).stem
    taken = [p.name.removeprefix(f"{name}-") for p in parent.glob(f"{name}-*")]
    last = max((int(number) for number in taken if number.isdecimal()), default=0)
    return parent / f"{name}-{last + 1}"


__all__ = ["find_runs", "is_run", "next_folder"]
