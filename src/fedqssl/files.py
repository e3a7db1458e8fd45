"""Files: written completely or not at all, locked, and JSON with clear errors. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_DEPTH = 32
"""Levels of nesting in a JSON file; ours have at most six."""
MAX_NAME = 200
"""Characters of a client's name."""


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
    if name == "hf" and not os.path.isdir(os.path.expanduser(path)):
        return spec  # a name on the hub
    return f"{name}:{os.path.abspath(os.path.expanduser(path))}" if colon and path else spec


def finite(value: Any) -> Any:
    """The same values, with None for NaN and infinity, which JSON lacks (the loss of a round whose steps were all skipped)."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str | bytes) -> Any:
    """The values of a JSON text.

    Raises:
        ValueError: it is not JSON, or it nests deeper than anything of ours.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [item for part in level for item in _inside(part) if isinstance(item, (dict, list))]
        if not level:
            return values
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def is_folder_name(name: str) -> bool:
    """Whether a client of this name can have a folder of its own, and a line on a terminal."""
    plain = name.isprintable() and name.strip(". ") == name and len(name) <= MAX_NAME
    return plain and bool(name) and not set(name) & set('/\\:*?"<>|')


def printable(text: str) -> str:
    """The text with ``?`` for characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def read_json(path: Path, error_class: type[Exception] = ValueError, hint: str = "") -> Any:
    """The values of a JSON file.

    Args:
        path: the file.
        error_class: what to raise if it cannot be read; the message names the file and the reason.
        hint: what the user can do about it, the end of that message.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
    "is_folder_name",
    "is_locked",
    "locked",
    "parse_json",
    "printable",
    "read_json",
    "read_json_or_none",
    "write_atomically",
    "write_json",
]
