"""Structured logs: one JSON object per line, with the time and the event. No keys, no tokens, nothing about the data."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any


class Events:
    """Appends to a file; a log that cannot be written does not stop anything."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()

    def note(self, event: str, **values: Any) -> None:
        """Add a line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": stamp, "event": event, **values})
        with self._lock, contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
