"""Files: written completely or not at all, locked, and JSON with clear errors. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def absolute(spec: str) -> str:
    """``folder:photos`` with an absolute path, for a process started in another folder; names of data sets are unchanged."""
    name, colon, path = spec.partition(":")
    return f"{name}:{os.path.abspath(os.path.expanduser(path))}" if colon and path else spec


def finite(value: Any) -> Any:
    """The same values, with None for NaN and infinity, which JSON lacks (the loss of a round whose steps were all skipped)."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path, error_class: type[Exception] = ValueError, hint: str = "") -> Any:
    """The values of a JSON file.

    Args:
        path: the file.
        error_class: what to raise if it cannot be read; the message names the file and the reason.
        hint: what the user can do about it, the end of that message.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise error_class(f"{path} cannot be read ({error}){hint and f'; {hint}'}") from error


def read_json_or_none(path: Path) -> Any:
    """The values of a JSON file that another process writes; None if it is missing or not yet complete."""
    try:
        return read_json(path)
    except ValueError:
        return None


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file atomically; NaN and infinity become null."""
    write_atomically(path, (json.dumps(finite(values), indent=1, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(path: Path, busy: Exception) -> Iterator[None]:
    """Hold a lock file; a process that is killed releases it.

    Args:
        path: the lock file, created if necessary.
        busy: what to raise if another process holds it.
    """
    import fcntl  # not on Windows, where a device can still predict

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield


def is_locked(path: Path) -> bool:
    """Whether a process currently holds this lock file."""
    import fcntl

    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


__all__ = [
    "absolute",
    "finite",
    "is_locked",
    "locked",
    "read_json",
    "read_json_or_none",
    "write_atomically",
    "write_json",
]
