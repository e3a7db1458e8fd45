"""A client's heartbeat: tells the server every few seconds that this process is alive, also while it trains."""

from __future__ import annotations

import threading
from collections.abc import Callable

INTERVAL = 10.0
"""Seconds that the server is told to expect between two heartbeats, Flower's least; it allows for one that is missed, and so
notices within 20 seconds that a client has died."""
BEAT = 6.0
"""Seconds between two heartbeats: a slow one is not a missed one."""
AGAIN = 2.0
"""Seconds until a heartbeat that did not arrive is tried again."""


class Heart:
    """Beats in a thread of its own.

    Args:
        beat: sends a heartbeat; returns whether it arrived.
        wait: waits for so many seconds, or until the heart is stopped; returns whether it was.
    """

    def __init__(self, beat: Callable[[], bool], wait: Callable[[float], bool] | None = None) -> None:
        self._beat, self._stop = beat, threading.Event()
        self._wait = wait or self._stop.wait
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def beating(self) -> bool:
        """Whether it has begun and was not stopped."""
        return self._thread.is_alive() and not self._stop.is_set()

    def stop(self) -> None:
        """Stop, and wait for the heartbeat that is on its way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._wait(BEAT if self._beat() else AGAIN):
            pass


__all__ = ["INTERVAL", "Heart"]
