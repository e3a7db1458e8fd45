"""Structured logs: one JSON object per line, with the time and the event. No keys, no tokens, nothing about the data."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFUSALS = 20
"""Lines about refused requests in a minute: strangers cause them, and must not fill the disk."""
LARGEST = 32 << 20
"""Bytes after which a log begins anew; the old one is kept beside it once."""


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
            if self.path.exists() and self.path.stat().st_size > LARGEST:
                os.replace(self.path, self.path.with_name(self.path.name + ".1"))
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
