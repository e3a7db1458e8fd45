"""Files that are there in full or not at all, and numbers that JSON can hold; imports nothing heavy."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there in full or not at all."""
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
    """``folder:photos`` with the whole path, for a process that may start elsewhere; names of data sets stay as they are."""
    name, colon, path = spec.partition(":")
    return f"{name}:{os.path.abspath(os.path.expanduser(path))}" if colon and path else spec


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have (a loss of a round whose steps were all skipped)."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
