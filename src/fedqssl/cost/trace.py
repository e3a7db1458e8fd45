"""The layers' real shapes and bits, by forward hooks on a (converted) model; the basis of every formula of the ledger."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedqssl.lowbit.activation import Activation
from fedqssl.lowbit.fp32_layers import ClippedReLU, FullConv2d, FullLinear
from fedqssl.lowbit.layers import LowBitConv2d, LowBitLinear, LowBitNorm, RangeCodes, TanhCodes
from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.quant.packing import packed_size

FLOAT = 32
"""Bits of a float."""

_ROWS = 2  # images in the hooked pass: batch norm of (N, C) needs two


@dataclass(frozen=True)
class Product:
    """One call of a convolution or linear layer; counts are per image that enters the network (per view).

    Args:
        name: the layer's name in the model.
        macs: multiply-accumulates of the forward product, zero padding included.
        inputs: entries of its input.
        outputs: entries of its output.
        weight_bits: M of the weights.
        input_bits: K of the input's codes.
        gradient_bits: bits of the output's gradient.
        input_gradient: whether the backward pass continues to the input (not for the layer that reads the images).
    """

    name: str
    macs: int
    inputs: int
    outputs: int
    weight_bits: int
    input_bits: int
    gradient_bits: int
    input_gradient: bool


@dataclass(frozen=True)
class Saved:
    """One tensor kept for the backward pass: ``entries`` codes of ``bits`` bits per view, and ``fixed`` bytes per step."""

    what: str
    entries: int
    bits: int
    fixed: int = 0

    def nbytes(self, views: int) -> int:
        """``ceil(entries * views * bits / 8) + fixed``."""
        return packed_size(self.entries * views, self.bits) + self.fixed


@dataclass(frozen=True)
class WeightTensor:
    """The weights of one layer: their number, bits, and the bits of their gradient."""

    name: str
    count: int
    bits: int
    gradient_bits: int


@dataclass(frozen=True)
class Trace:
    """What a model computes and keeps, per view; see :func:`trace`.

    Args:
        products: calls of convolutions and linear layers, in order.
        saved: what is kept for backward, each tensor once.
        weights: low-bit (or full-precision) weights.
        floats: trainable floats besides them (batch norm, biases).
        buffer_bytes: running statistics, activation ranges, counters.
        outputs: entries of the network's output per view: what the objective reads.
        lowbit: whether activations are codes.
    """

    products: tuple[Product, ...]
    saved: tuple[Saved, ...]
    weights: tuple[WeightTensor, ...]
    floats: int
    buffer_bytes: int
    outputs: int
    lowbit: bool

    @property
    def largest(self) -> int:
        """Entries per view of the largest input or output of a layer."""
        return max((max(p.inputs, p.outputs) for p in self.products), default=0)


class _Recorder:
    """Collects what the hooks see; tensors are held until the pass is over, so that an identity means one tensor."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.saved: list[Saved] = []
        self._seen: dict[tuple[int, str], object] = {}

    def keep(self, owner: object, saved: Saved, kind: str = "") -> None:
        """Record a saved tensor once, however many layers save it."""
        if (id(owner), kind) not in self._seen:
            self._seen[id(owner), kind] = owner
            self.saved.append(saved)


def _entries(x: Tensor | Activation) -> int:
    return x.shape.numel() // _ROWS


def _macs(module: nn.Module, outputs: int) -> int:
    """Outputs times the entries that each is a sum over: ``C_in / groups * k_h * k_w``, or the input features."""
    weight: Any = module.weight
    return outputs * int(weight.shape[1:].numel())


def _lowbit_product(name: str, module: Any, x: Activation, y: Tensor, to: _Recorder) -> None:
    n = _entries(x)
    bits = module.weight.bits, x.bits, module.gradient_bits
    outputs = _entries(y)
    to.products.append(Product(name, _macs(module, outputs), n, outputs, *bits, x.grad_carrier.requires_grad))
    to.keep(x, Saved(f"{name}: input codes", n, x.bits))


def _float_product(name: str, module: Any, x: Tensor, y: Tensor, to: _Recorder) -> None:
    n, outputs = _entries(x), _entries(y)
    to.products.append(Product(name, _macs(module, outputs), n, outputs, FLOAT, FLOAT, FLOAT, x.requires_grad))
    to.keep(x, Saved(f"{name}: input", n, FLOAT))
    if isinstance(module, (FullConv2d, FullLinear)) and module.options.weights != "value":
        # tanh keeps its result c(x); the product keeps c(x)/max|c(x)|, which without a batch norm behind it is c(x) itself.
        kept = (int(module.options.compander != "identity") + int(module.absorbed)) * module.weight.numel()
        scale = int(module.absorbed)
        to.keep(module, Saved(f"{name}: companded weights", 0, FLOAT, 4 * (kept + scale)))


def _lowbit_norm(name: str, module: LowBitNorm, x: Tensor, y: object, to: _Recorder) -> None:
    n = _entries(x)
    if module.activate:
        to.saved.append(Saved(f"{name}: clip mask", n, 1))
    if module.normalizes:
        to.saved.append(Saved(f"{name}: normalized input", n, module.options.hat_bits(module.precision.activation)))


def _range_codes(name: str, module: RangeCodes, x: Tensor, y: object, to: _Recorder) -> None:
    if x.requires_grad:
        to.saved.append(Saved(f"{name}: clip mask", _entries(x), 1))


def _tanh_codes(name: str, module: TanhCodes, x: Tensor, y: object, to: _Recorder) -> None:
    n = _entries(x)
    to.saved += [Saved(f"{name}: relu", n, FLOAT), Saved(f"{name}: tanh", n, FLOAT), Saved(f"{name}: clip mask", n, 1)]


def _float_norm(name: str, module: Any, x: Tensor, y: Tensor, to: _Recorder) -> None:
    to.keep(x, Saved(f"{name}: input", _entries(x), FLOAT))
    to.keep(module, Saved(f"{name}: mean and 1/std", 0, FLOAT, 8 * module.num_features))


def _keeps_input(name: str, module: nn.Module, x: Tensor, y: Tensor, to: _Recorder) -> None:
    to.keep(x, Saved(f"{name}: input", _entries(x), FLOAT))


def _keeps_output(name: str, module: nn.Module, x: Tensor, y: Tensor, to: _Recorder) -> None:
    to.keep(y, Saved(f"{name}: output", _entries(y), FLOAT))


def _max_pool(name: str, module: nn.Module, x: Tensor, y: Tensor, to: _Recorder) -> None:
    _keeps_input(name, module, x, y, to)
    to.saved.append(Saved(f"{name}: indices", _entries(y), 64))


Rule = Callable[[str, Any, Any, Any, _Recorder], None]
_RULES: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((LowBitConv2d, LowBitLinear), _lowbit_product),
    ((nn.Conv2d, nn.Linear), _float_product),
    ((LowBitNorm,), _lowbit_norm),
    ((nn.BatchNorm1d, nn.BatchNorm2d), _float_norm),
    ((RangeCodes,), _range_codes),
    ((TanhCodes,), _tanh_codes),
    ((ClippedReLU, nn.AvgPool2d), _keeps_input),
    ((nn.ReLU,), _keeps_output),
    ((nn.MaxPool2d,), _max_pool),
)
"""What autograd keeps for each kind of module: read off ``lowbit.functions`` and torch's derivatives."""


def _attach(model: nn.Module, recorder: _Recorder) -> Iterator[torch.utils.hooks.RemovableHandle]:
    for name, module in model.named_modules():
        rule = next((rule for kinds, rule in _RULES if isinstance(module, kinds)), None)
        if rule is not None:

            def hook(m: nn.Module, args: tuple[Any, ...], y: Any, name: str = name, rule: Rule = rule) -> None:
                rule(name, m, args[0], y, recorder)

            yield module.register_forward_hook(hook)


def trace(model: nn.Module, image: tuple[int, int, int] = (3, 32, 32)) -> Trace:
    """Run two random images of shape ``(C, H, W)`` through a copy of the model and record every layer's shapes and bits.

    Takes models from ``to_lowbit`` at any precision, and plain torch models. Operators that are not modules (such as
    ``F.max_pool2d``) are not seen: a measurement beside the formula shows what they keep.
    """
    model = copy.deepcopy(model).train()
    recorder = _Recorder()
    handles = list(_attach(model, recorder))
    draws = torch.Generator().manual_seed(0)
    output = model(torch.rand(_ROWS, *image, generator=draws))
    for handle in handles:
        handle.remove()
    lowbit = [(n, m) for n, m in model.named_modules() if isinstance(m, LowBitWeight)]
    weights = [WeightTensor(n, m.shape.numel(), m.bits, m.gradient_bits) for n, m in lowbit]
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            weights.append(WeightTensor(f"{name}.weight", module.weight.numel(), FLOAT, FLOAT))
    inside = {f"{n}.{part}" for n, _ in lowbit for part in ("codes", "scale", "anchor")}
    listed = {w.name for w in weights}
    floats = sum(p.numel() for n, p in model.named_parameters() if n not in listed | inside)
    buffers = sum(b.numel() * b.element_size() for n, b in model.named_buffers() if n not in inside)
    return Trace(
        tuple(recorder.products),
        tuple(recorder.saved),
        tuple(weights),
        floats,
        buffers,
        output.numel() // _ROWS,
        bool(lowbit),
    )


__all__ = ["FLOAT", "Product", "Saved", "Trace", "WeightTensor", "trace"]
