"""The formulas: bit operations and memory of one training step, from a model's trace and the loss's own operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedqssl.cost.trace import FLOAT, Product, Trace, WeightTensor
from fedqssl.lowbit.optim import RESIDUAL_BITS
from fedqssl.quant.packing import packed_size
from fedqssl.quant.rounding import MAX_BITS

WORKSPACE_TENSORS = 3
"""Float tensors of the largest layer that a low-bit step holds at once (``lowbit/buffer_pool.py``; measured in docs/cost.md)."""


@dataclass(frozen=True)
class BitOperations:
    """Bit operations: a multiply-accumulate of M-bit by K-bit numbers costs M * K (Sec. 1.1), 32 * 32 in floats.

    Args:
        forward: of the layers' products ``y = x w``.
        backward: of ``dL/dw = g x`` and ``dL/dx = g w``.
        objective: of the loss's own matrix products, forward and backward, which run in floats at every precision.
    """

    forward: int = 0
    backward: int = 0
    objective: int = 0

    @property
    def total(self) -> int:
        """The sum."""
        return self.forward + self.backward + self.objective

    def __add__(self, other: BitOperations) -> BitOperations:
        return BitOperations(
            self.forward + other.forward, self.backward + other.backward, self.objective + other.objective
        )

    def __mul__(self, times: int) -> BitOperations:
        return BitOperations(self.forward * times, self.backward * times, self.objective * times)


@dataclass(frozen=True)
class Memory:
    """Bytes that a client holds in a training step.

    Args:
        weights: packed codes, scales, batch norm, biases, statistics.
        activations: kept for the backward pass, the objective's own tensors included.
        gradients: of all weights, between backward pass and update: packed codes, centres, floats.
        optimizer: what is kept between steps besides: by the update rule, and the target network of objectives that have one.
        workspace: float views of the layer at work, in this implementation (an estimate; not part of ``total``).
    """

    weights: int
    activations: int
    gradients: int
    optimizer: int
    workspace: int = 0

    @property
    def total(self) -> int:
        """Everything that a step holds in the client's bits; the paper's memory consumption."""
        return self.weights + self.activations + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """``total`` and the workspace: what a device needs with this implementation."""
        return self.total + self.workspace

    def parts(self) -> dict[str, int]:
        """Bytes by name, without the workspace."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "workspace"}


@dataclass(frozen=True)
class ObjectiveCost:
    """Multiply-accumulates of the loss's matrix products (forward and backward), and float bytes kept for backward."""

    macs: int
    saved_bytes: int


NO_OBJECTIVE = ObjectiveCost(0, 0)


def saved_bytes(forward: Callable[[], Tensor], own: Iterable[Tensor] = ()) -> tuple[Tensor, int]:
    """The loss, and the bytes that its forward pass keeps for backward: each storage once, none of the tensors in ``own``."""
    kept: dict[int, Tensor] = {}  # held until all are counted, so that no storage takes another's place

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = forward()
    for tensor in own:
        kept.pop(tensor.untyped_storage()._cdata, None)
    return loss, sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def objective_cost(loss: Callable[[Tensor], Tensor], rows: int, width: int) -> ObjectiveCost:
    """Cost of ``loss(z)`` and its backward for an output ``z`` of shape ``(rows, width)``.

    For NT-Xent with 2N rows of d entries: ``(2N)^2 d`` forward and twice that backward; the similarities, ``4 (2N)^2`` bytes, are
    the largest tensor kept. Counted on tensors without data (torch's ``meta`` device), so any batch costs nothing.
    """
    z = torch.empty(rows, width, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        value, saved = saved_bytes(lambda: loss(z * 1.0))  # z * 1.0: like a network's output, not a leaf
        torch.autograd.backward(value)
    return ObjectiveCost(int(counter.get_total_flops()) // 2, saved)


def gradient_bits(product: Product, views: int) -> int:
    """Bits of the gradient of a layer's output: s + 2, or 32 if it has no more entries than centres and is kept exactly."""
    exact = product.outputs * views <= 2**product.gradient_bits
    return FLOAT if exact else product.gradient_bits


def product_operations(product: Product, views: int) -> BitOperations:
    """Bit operations of one layer: with w, a and g the bits of weights, input and output gradient.

    ``forward = macs w a``; ``backward = macs g a`` (dL/dw) ``+ macs g w`` (dL/dx, unless the layer reads the images).
    """
    macs, w, a, g = product.macs * views, product.weight_bits, product.input_bits, gradient_bits(product, views)
    return BitOperations(macs * w * a, macs * g * (a + w if product.input_gradient else a))


def step_operations(
    trace: Trace, views: int, objective: ObjectiveCost = NO_OBJECTIVE, target: bool = False
) -> BitOperations:
    """Bit operations of a training step on ``views`` views: the layers' sum, and the objective at 32 * 32.

    With a ``target`` network the views go forward twice.
    """
    total = BitOperations(objective=objective.macs * FLOAT * FLOAT)
    for product in trace.products:
        total += product_operations(product, views)
    return total + BitOperations(forward=total.forward) if target else total


def weight_bytes(weight: WeightTensor) -> int:
    """``ceil(n s / 8)`` and a 4-byte scale; 4n in floats."""
    return packed_size(weight.count, weight.bits) + (4 if weight.bits != FLOAT else 0)


def gradient_bytes(weight: WeightTensor) -> int:
    """``ceil(n g / 8)`` and up to ``min(n, 2^g)`` centres of 4 bytes; 4n in floats."""
    n, g = weight.count, weight.gradient_bits
    return 4 * n if g == FLOAT else packed_size(n, g) + 4 * min(n, 1 << g)


def optimizer_bytes(weight: WeightTensor, rule: str, keeps: str = "") -> int:
    """``stored``: nothing; ``latent``: 4n; ``residual``: n codes of ``min(4, 16 - s)`` bits.

    A client that keeps the received model (``Algorithm.keeps``: FedProx, FedPAQ) also holds a copy of its weights, in its bits.
    """
    copy = weight_bytes(weight) if keeps else 0
    if weight.bits == FLOAT or rule == "stored":
        return copy
    if rule == "latent":
        return 4 * weight.count + copy
    return packed_size(weight.count, min(RESIDUAL_BITS, MAX_BITS - weight.bits)) + copy


def step_memory(
    trace: Trace,
    views: int,
    rule: str = "stored",
    keeps: str = "",
    objective: ObjectiveCost = NO_OBJECTIVE,
    target: bool = False,
) -> Memory:
    """Memory of a training step on ``views`` views; ``rule`` and ``keeps`` as for :func:`optimizer_bytes`.

    A ``target`` network is a second copy of all that the model holds, in the same bits.

    Kept for backward at s bits: the input codes of every product (s bits an entry, 8 for images; one copy however many layers
    read them), the clip mask of every activation (1 bit), batch norm's normalized input (``bn_saved_bits``). In floats: inputs
    of products, of batch norm and of activations, and the companded weights.
    """
    model = sum(map(weight_bytes, trace.weights)) + 4 * trace.floats + trace.buffer_bytes
    copy = (4 * trace.floats if keeps else 0) + (model if target else 0)
    return Memory(
        weights=model,
        activations=sum(s.nbytes(views) for s in trace.saved) + objective.saved_bytes,
        gradients=sum(map(gradient_bytes, trace.weights)) + 4 * trace.floats,
        optimizer=sum(optimizer_bytes(w, rule, keeps) for w in trace.weights) + copy,
        workspace=WORKSPACE_TENSORS * 4 * trace.largest * views if trace.lowbit else 0,
    )


__all__ = [
    "NO_OBJECTIVE",
    "BitOperations",
    "Memory",
    "ObjectiveCost",
    "gradient_bits",
    "gradient_bytes",
    "objective_cost",
    "optimizer_bytes",
    "product_operations",
    "saved_bytes",
    "step_memory",
    "step_operations",
    "weight_bytes",
]
