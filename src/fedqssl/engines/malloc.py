"""Keep freed memory in the process: large tensors are allocated again at each step, and page faults cost time.

On the quickstart the kernel's share falls from 8% of the CPU time to 1.6%, and the peak grows by 2% (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of malloc.h
_KEPT = 512 * 2**20
_PAD = 16 * 2**20


def keep_freed_memory() -> bool:
    """Ask glibc to serve large requests from its heap and to keep up to 512 MiB of freed memory; returns whether it was asked.

    Does nothing with another C library, or if the user set glibc's own ``MALLOC_`` variables.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has no such function
        return False
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _PAD))
    return all(mallopt(name, value) == 1 for name, value in wanted)


__all__ = ["keep_freed_memory"]
