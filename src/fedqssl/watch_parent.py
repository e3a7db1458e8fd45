"""A child process that ends when its parent ends, for whatever reason."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Protocol


class Lifeline(Protocol):
    """The reading end of a pipe, such as ``sys.stdin`` or a ``multiprocessing`` connection."""

    def fileno(self) -> int:
        """Its file descriptor."""


def end_with_parent(lifeline: Lifeline) -> None:
    """Start a thread that ends this process at once, even in the middle of a job, when the other end of the pipe is closed.

    Args:
        lifeline: a pipe whose writing end only the parent holds and on which nothing more is sent.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline.fileno(), 1)  # not through sys.stdin, whose lock would be held when this process ends
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


__all__ = ["Lifeline", "end_with_parent"]
