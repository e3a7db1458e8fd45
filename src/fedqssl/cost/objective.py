"""Cost of the loss itself, from its own operators on tensors without data (torch's ``meta`` device)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ObjectiveCost:
    """Multiply-accumulates of the loss's matrix products (forward and backward), and float bytes kept for backward."""

    macs: int
    saved_bytes: int


def objective_cost(loss: Loss, rows: int, width: int) -> ObjectiveCost:
    """Cost of ``loss(z)`` and its backward for an output ``z`` of shape ``(rows, width)``.

    For NT-Xent with 2N rows of d entries: ``(2N)^2 d`` forward and twice that backward; the similarities, ``4 (2N)^2`` bytes, are
    the largest tensor kept. Counting needs no data, so any batch costs nothing.
    """
    kept: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = (storage.nbytes(), tensor)  # the tensor is held, so that no storage takes its place
        return tensor

    z = torch.empty(rows, width, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        torch.autograd.backward(loss(z * 1.0))  # z * 1.0: like a network's output, not a leaf
    return ObjectiveCost(int(counter.get_total_flops()) // 2, sum(size for size, _ in kept.values()))


__all__ = ["Loss", "ObjectiveCost", "objective_cost"]
