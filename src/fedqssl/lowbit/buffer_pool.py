"""Large transient float buffers of a training step, reused from layer to layer.

torch's CPU allocator maps and unmaps every tensor past 32 MiB, and the kernel zeroes its pages each time: measured here at 23 ms
for the 33.5 MiB of one layer, as much as the convolution that fills it. A step needs two or three such buffers at once, so they
are reused as soon as nothing else refers to their storage, and returned to the system at the end of the step.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 8 << 20
"""Tensors of at least this many bytes come from the pool; smaller ones are reused well enough by malloc itself."""

CHUNK_FROM = 20 << 20
CHUNK = 4 << 20
"""Float tensors from ``CHUNK_FROM`` bytes on are convolved in chunks of about ``CHUNK`` bytes, which stay in cache; below that
malloc reuses memory by itself, and whole batches are faster."""

GPU_CHUNK = 32 << 20
"""Chunks on a GPU, which is idle in part with few images at a time; of tensors from two of them on."""

_use_count = getattr(torch._C, "_storage_Use_Count", None)


def _references(buffer: Tensor) -> int:
    assert _use_count is not None
    return int(_use_count(buffer.untyped_storage()._cdata))


class BufferPool:
    """Lends float32 buffers on the CPU; one is free again when only the pool refers to its storage."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, n: int, device: torch.device) -> Tensor:
        """A flat float32 tensor of n elements with undefined contents."""
        if device.type != "cpu" or _use_count is None or 4 * n < LARGE:
            return torch.empty(n, device=device)
        idle = [b for b in self._buffers if b.numel() >= n and _references(b) <= 2]  # the pool's, and this query's
        if idle:
            return min(idle, key=Tensor.numel)[:n]
        buffer = torch.empty(n)
        self._buffers = [b for b in self._buffers if b.numel() >= n or _references(b) > 2]
        self._buffers.append(buffer)
        return buffer[:]

    def take_like(self, x: Tensor) -> Tensor:
        """A buffer with the shape of the contiguous tensor x."""
        return self.take(x.numel(), x.device).view(x.shape)

    def release(self) -> None:
        """Forget all buffers; memory returns to the system once nothing uses it."""
        self._buffers.clear()


POOL = BufferPool()
