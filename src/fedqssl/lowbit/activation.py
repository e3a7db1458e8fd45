"""Activations between low-bit layers: s-bit codes, and the gradient carrier that ties them into autograd's graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedqssl.lowbit.buffer_pool import POOL
from fedqssl.quant.kernels import ops
from fedqssl.quant.packing import packed_size


def to_rows(x: Tensor) -> Tensor:
    """(N, C, H, W) as the contiguous matrix (N*H*W, C), without a copy for channels_last; (N, C) is unchanged."""
    if x.dim() == 2:
        return x.contiguous()
    if x.dim() != 4:
        raise ValueError(
            f"low-bit layers take tensors of shape (N, C) or (N, C, H, W), not {tuple(x.shape)}; fold other dimensions into N"
        )
    return x.permute(0, 2, 3, 1).contiguous().flatten(0, 2)


def from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """Inverse of :func:`to_rows`: a channels_last tensor of ``shape``."""
    if len(shape) == 2:
        return rows.view(shape)
    n, c, h, w = shape
    return rows.view(n, h, w, c).permute(0, 3, 1, 2)


def grad_carrier(shape: torch.Size, device: torch.device) -> Tensor:
    """A float tensor of this shape that takes four bytes: it carries gradients backward and nothing forward."""
    return torch.zeros((), device=device).expand(shape)


class _NoGraph:
    """Stands in for autograd's context where nothing is recorded."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (False,) * inputs

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep nothing."""

    def set_materialize_grads(self, value: bool) -> None:
        """There are no gradients."""


def run(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """``function.apply``; without gradients its forward pass alone, as autograd takes as long as a small layer."""
    if torch.is_grad_enabled():
        out: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    else:
        out = function.forward(_NoGraph(len(inputs)), *inputs)
    return out


@dataclass(frozen=True)
class Code:
    """How to read packed codes: bits, step, lowest value, shape."""

    bits: int
    step: float
    low: float
    shape: torch.Size


def _backward_pass() -> int:
    """Number of the backward pass that is running."""
    return int(torch._C._current_graph_task_id())


class Sink:
    """Where the low-bit consumers of an activation add up its gradient, in one buffer and in place.

    They hand nothing to autograd; the producer, which autograd runs after all of them, takes the sum from here. A deposited
    tensor belongs to the sink: its producer must not keep it.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._sparse: tuple[Tensor, tuple[int, int], torch.Size] | None = None
        self._pass = -1

    def add(self, g: Tensor) -> None:
        """Deposit a gradient."""
        total, sparse = self.take_dense(), self._sparse
        self._total, self._sparse = g if total is None else total.add_(g), None
        if sparse is not None:
            _add_strided(self._total, *sparse[:2])
        self._pass = _backward_pass()

    def add_strided(self, g: Tensor, stride: tuple[int, int], shape: torch.Size) -> None:
        """Deposit a gradient that is zero but at every ``stride``-th row and column of ``shape``."""
        total = self.take_dense()
        if total is not None:
            _add_strided(total, g, stride)
        elif self._sparse is None:
            self._sparse = g, stride, shape
        elif self._sparse[1] == stride:
            self._sparse[0].add_(g)
        else:
            total = _add_strided(_add_strided(zeros(shape, g.device), *self._sparse[:2]), g, stride)
            self._sparse = None
        self._total, self._pass = total, _backward_pass()

    def take_dense(self) -> Tensor | None:
        """The sum so far in this backward pass, without strided gradients that wait for another to be added to.

        The next deposit must follow, or :meth:`take`. Leftovers of a pass that was aborted are dropped.
        """
        total, self._total = self._total, None
        if self._pass == _backward_pass():
            return total
        self._sparse = None
        return None

    def take(self) -> Tensor | None:
        """The sum so far in this backward pass; the sink is empty afterwards."""
        total = self.take_dense()
        sparse, self._sparse = self._sparse, None
        if sparse is None:
            return total
        g, stride, shape = sparse  # no total: whatever is deposited later is added to it
        return _add_strided(zeros(shape, g.device), g, stride)


def zeros(shape: torch.Size, device: torch.device) -> Tensor:
    """Zeros, channels_last, in a pooled buffer."""
    return from_rows(POOL.take(shape.numel(), device), shape).zero_()


def _add_strided(total: Tensor, g: Tensor, stride: tuple[int, int]) -> Tensor:
    total[:, :, :: stride[0], :: stride[1]].add_(g)
    return total


@dataclass(frozen=True, eq=False)
class Activation:
    """Codes of ``bits`` bits; code k stands for ``low + k * step`` (low is 0 behind an activation function).

    ``packed`` (rows order) is kept for the backward pass. The next layer reads ``codes`` (uint8, up to 8 bits) if they are
    there, else ``values`` (floats), else it unpacks; these views go with this object. Consumers that know of ``sink`` leave
    their gradient there instead of returning it to autograd.
    """

    grad_carrier: Tensor
    bits: int
    step: float
    packed: Tensor | None
    codes: Tensor | None
    values: Tensor | None
    low: float = 0.0
    sink: Sink | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the activation tensor."""
        return self.grad_carrier.shape

    @property
    def code(self) -> Code:
        """What is needed to read the packed codes."""
        return Code(self.bits, self.step, self.low, self.shape)

    def carried_by(self, carrier: Tensor) -> Activation:
        """The same codes, tied into autograd's graph by another carrier."""
        return self if carrier is self.grad_carrier else replace(self, grad_carrier=carrier)

    def floats(self) -> Tensor:
        """The float view, outside autograd."""
        if self.values is not None:
            return self.values
        if self.codes is not None:
            return self.codes.to(torch.float32) * self.step + self.low
        return self.images(0, self.shape[0], pooled=True)

    def images(self, start: int, count: int, pooled: bool = False) -> Tensor:
        """The float view of some images, channels_last; ``start`` a multiple of 8."""
        if self.values is not None:
            return self.values[start : start + count]
        if self.codes is not None and self.low == 0:
            part = self.codes[start : start + count]
            return unpack_values(to_rows(part).flatten(), Code(8, self.step, 0.0, part.shape))
        assert self.packed is not None
        return unpack_images(self.packed, self.code, start, count, pooled)

    def to_tensor(self) -> Tensor:
        """The float view inside autograd, for operators that are not low-bit (pooling, a model's output)."""
        return run(_ToTensor, self.grad_carrier, self)

    def for_backward(self) -> Tensor:
        """Packed codes to be saved by the next layer."""
        if self.packed is None:  # recorded by a consumer although the producer ran without gradients
            return pack_values(self.floats(), self.code)
        return self.packed


def pack_values(x: Tensor, code: Code) -> Tensor:
    """Packed codes of floats: ``round((x - low) / step)``, clipped to the grid."""
    flat = to_rows(x).flatten()
    packed: Tensor = ops(flat).quantize_pack(flat - code.low if code.low else flat, code.bits, 1.0 / code.step)
    return packed


def unpack_values(packed: Tensor, code: Code) -> Tensor:
    """``low + k * step`` of a packed activation, channels_last."""
    flat = ops(packed).unpack_affine(packed, code.bits, code.shape.numel(), code.step, code.low)
    return from_rows(flat, code.shape)


def unpack_images(packed: Tensor, code: Code, start: int, count: int, pooled: bool = False) -> Tensor:
    """The float view of images ``start`` (a multiple of 8) to ``start + count`` of a packed activation."""
    count = min(count, code.shape[0] - start)
    part = Code(code.bits, code.step, code.low, torch.Size((count, *code.shape[1:])))
    first = start * code.shape[1:].numel() * code.bits // 8
    stream = packed[first : first + packed_size(part.shape.numel(), code.bits)]
    out = POOL.take(part.shape.numel(), packed.device) if pooled else None
    flat = ops(stream).unpack_affine(stream, part.bits, part.shape.numel(), part.step, part.low, out)
    return from_rows(flat, part.shape)


class _ToTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_carrier: Tensor, activation: Activation) -> Tensor:
        return activation.floats().clone()  # views and pooled buffers must not escape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None
