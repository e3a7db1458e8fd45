"""A worker process of :mod:`fedqssl.engines.pool`: opens what is shared, then runs one job after the other.

It ends with its parent, however that ends: standard input is a pipe that closes then. Nothing heavy is imported before that is
watched.
"""

from __future__ import annotations

import pickle
import resource
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from fedqssl.watch_parent import end_with_parent


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def send(connection: Connection, value: Any) -> None:
    """Send a value as plain bytes: a connection's own ``send`` would put torch's tensors into shared memory."""
    connection.send_bytes(pickle.dumps(value))


def receive(connection: Connection) -> Any:
    """What :func:`send` sent."""
    return pickle.loads(connection.recv_bytes())


def main(handle: int) -> None:
    """Read jobs from a connection until it closes: (function, arguments) -> (result or error, peak memory)."""
    end_with_parent(sys.stdin)
    connection = Connection(handle)
    shared, threads = receive(connection)
    value = _prepare(threads, shared)
    while True:
        try:
            function, arguments = receive(connection)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = True, function(value, *arguments)
        except Exception as error:  # whatever a job raises is the parent's to handle
            answer = False, _portable(error)
        send(connection, (*answer, peak_memory()))


def _prepare(threads: int, shared: Any) -> Any:
    import torch

    from fedqssl.engines.malloc import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    return shared.open()


def _portable(error: Exception) -> tuple[Exception, str]:
    """The error, fit to be sent, and its traceback as a text; an error that cannot be sent is described."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class may take any arguments
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return error, text


__all__ = ["main", "peak_memory", "receive", "send"]
