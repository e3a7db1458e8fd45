"""What the server checks before it uses an upload: format, checksum, architecture, shapes, bits, finite values, size."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fedqssl.federated.task import Task
from fedqssl.lowbit import to_bytes

Check = Callable[[bytes, int, Task], None]
"""(upload, the client's bits, task) -> nothing, or a ContainerError that says what is wrong."""

SLACK = 2.0
"""A valid model is as long as ours, except that floats may travel as 16 or 32 bits."""


def check_model(payload: bytes, bits: int, task: Task) -> None:
    """Raise ContainerError unless this is the task's model in this client's bits."""
    task.reader(bits).load(payload, max_bytes=int(SLACK * _usual_length(task, bits)))


@functools.lru_cache(maxsize=16)
def _usual_length(task: Task, bits: int) -> int:
    return len(to_bytes(task.converted(bits)))
