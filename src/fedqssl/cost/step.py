"""The formulas: bit operations and memory of one training step, from a model's trace."""

from __future__ import annotations

from fedqssl.cost.amounts import BitOperations, Memory
from fedqssl.cost.objective import ObjectiveCost
from fedqssl.cost.trace import FLOAT, Product, Trace, WeightTensor
from fedqssl.quant.packing import packed_size

RESIDUAL_BITS = 8
WORKSPACE_TENSORS = 3
"""Float tensors of the largest layer that a low-bit step holds at once (``lowbit/buffer_pool.py``; measured in docs/cost.md)."""

NO_OBJECTIVE = ObjectiveCost(0, 0)


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


def step_operations(trace: Trace, views: int, objective: ObjectiveCost = NO_OBJECTIVE) -> BitOperations:
    """Bit operations of a training step on ``views`` views: the layers' sum, and the objective at 32 * 32."""
    total = BitOperations(objective=objective.macs * FLOAT * FLOAT)
    for product in trace.products:
        total += product_operations(product, views)
    return total


def weight_bytes(weight: WeightTensor) -> int:
    """``ceil(n s / 8)`` and a 4-byte scale; 4n in floats."""
    return packed_size(weight.count, weight.bits) + (4 if weight.bits != FLOAT else 0)


def gradient_bytes(weight: WeightTensor) -> int:
    """``ceil(n g / 8)`` and up to ``min(n, 2^g)`` centres of 4 bytes; 4n in floats."""
    n, g = weight.count, weight.gradient_bits
    return 4 * n if g == FLOAT else packed_size(n, g) + 4 * min(n, 1 << g)


def optimizer_bytes(weight: WeightTensor, rule: str) -> int:
    """``stored``: nothing; ``latent``: 4n; ``residual``: n codes of 8 bits, 256 centres and a span.

    ``<rule>+proximal`` (FedProx) and ``<rule>+update`` (FedPAQ) add a copy of the received weights, in the client's bits.
    """
    kind, copies = kept(rule)
    copy = weight_bytes(weight) if copies else 0
    if weight.bits == FLOAT or kind == "stored":
        return copy
    if kind == "latent":
        return 4 * weight.count + copy
    return packed_size(weight.count, RESIDUAL_BITS) + 4 * (1 << RESIDUAL_BITS) + 4 + copy


def kept(rule: str) -> tuple[str, str]:
    """The optimiser's rule, and why a client keeps what it received: ``proximal``, ``update``, or nothing."""
    kind, _, copies = rule.partition("+")
    return kind, copies


def step_memory(trace: Trace, views: int, rule: str = "stored", objective: ObjectiveCost = NO_OBJECTIVE) -> Memory:
    """Memory of a training step on ``views`` views; ``rule`` as for :func:`optimizer_bytes`.

    Kept for backward at s bits: the input codes of every product (s bits an entry, 8 for images; one copy however many layers
    read them), the clip mask of every activation (1 bit), batch norm's normalized input (``bn_saved_bits``). In floats: inputs
    of products, of batch norm and of activations, and the companded weights.
    """
    copies = 4 * trace.floats if kept(rule)[1] else 0
    return Memory(
        weights=sum(map(weight_bytes, trace.weights)) + 4 * trace.floats + trace.buffer_bytes,
        activations=sum(s.nbytes(views) for s in trace.saved) + objective.saved_bytes,
        gradients=sum(map(gradient_bytes, trace.weights)) + 4 * trace.floats,
        optimizer=sum(optimizer_bytes(w, rule) for w in trace.weights) + copies,
        workspace=WORKSPACE_TENSORS * 4 * trace.largest * views if trace.lowbit else 0,
    )


__all__ = [
    "gradient_bits",
    "gradient_bytes",
    "kept",
    "optimizer_bytes",
    "product_operations",
    "step_memory",
    "step_operations",
    "weight_bytes",
]
