"""Structured logs: one JSON object per line, with the time and the event. No keys, no tokens, nothing about the data."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFUSALS = 20
"""Lines about refused requests in a minute: strangers cause them, and must not fill the disk."""
LARGEST, KEPT = 8 << 20, 4
"""Bytes after which a log begins anew, and how many older ones are kept beside it: ``log.jsonl.1`` is the newest of them."""


def _too_large(path: Path) -> bool:
    return path.exists() and path.stat().st_size > LARGEST


def rotate(path: Path) -> None:
    """Begin a log anew if it is too large; several processes may write to it."""
    if not _too_large(path):
        return
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _too_large(path):
            return  # another process was faster
        for number in range(KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(path.with_name(f"{path.name}.{number}"), path.with_name(f"{path.name}.{number + 1}"))
        os.replace(path, path.with_name(f"{path.name}.1"))


class Events:
    """Appends to a file; a log that cannot be written does not stop anything."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._lock, self._clock = path, threading.Lock(), clock
        self._minute, self._refusals, self._unlisted = 0.0, 0, 0

    def note(self, event: str, **values: Any) -> None:
        """Add a line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": stamp, "event": event, **values})
        with self._lock, contextlib.suppress(OSError):
            rotate(self.path)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def refused(self, **values: Any) -> None:
        """Add a line about a refused request, at most ``REFUSALS`` a minute; the next line says how many were left out."""
        with self._lock:
            now = self._clock()
            if now - self._minute >= 60:
                self._minute, self._refusals = now, 0
            self._refusals += 1
            if self._refusals > REFUSALS:
                self._unlisted += 1
                return
            unlisted, self._unlisted = self._unlisted, 0
        self.note("refused", **values, **({"unlisted": unlisted} if unlisted else {}))
