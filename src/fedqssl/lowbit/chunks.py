"""Large batches a few images at a time, so that what is made of them stays in cache; and operands that take no memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedqssl.lowbit import buffer_pool
from fedqssl.lowbit.activation import from_rows
from fedqssl.lowbit.buffer_pool import POOL


def chunk_images(shape: torch.Size, device: torch.device) -> int:
    """Images per chunk of a float tensor: all of a small one, else a multiple of 8 so that chunks start on a byte."""
    on_cpu = device.type == "cpu"
    chunk = buffer_pool.CHUNK if on_cpu else buffer_pool.GPU_CHUNK
    if 4 * shape.numel() < (buffer_pool.CHUNK_FROM if on_cpu else 2 * chunk):
        return max(shape[0], 1)
    return max(chunk // (4 * shape[1:].numel()) // 8 * 8, 8)


def in_chunks(
    shape: torch.Size,
    device: torch.device,
    operator: Callable[[int, int], Tensor],
    into: Tensor | None = None,
    over: Tensor | None = None,
) -> Tensor:
    """``operator(start, count)`` over the images of a batch of ``shape``, in chunks if it is large, in a pooled buffer.

    Or added to ``into``; or written over ``over``, which the operator reads and whose chunks are done with as they are read.
    """
    count = chunk_images(shape, device)
    if shape[0] <= count:
        part = operator(0, shape[0])
        return part if into is None else into.add_(part)
    out = into if over is None else over
    for start in range(0, shape[0], count):
        part = operator(start, count)
        if out is None:
            whole = torch.Size((shape[0], *part.shape[1:]))
            out = from_rows(POOL.take(whole.numel(), part.device), whole)
        if into is None:
            out[start : start + count] = part
        else:
            out[start : start + count] += part
    assert out is not None
    return out


def untouched(shape: torch.Size, device: torch.device) -> Tensor:
    """Stands for an operand of which only the shape matters: memory that nobody reads or writes, so that it takes none.

    torch would fill an expanded zero, whose strides are none that oneDNN takes: 10% of a step.
    """
    return torch.empty(shape, device=device, memory_format=torch.channels_last)
