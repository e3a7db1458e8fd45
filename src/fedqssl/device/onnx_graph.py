"""Node by node from a converted torch.fx graph to ONNX; :mod:`fedqssl.device.onnx_export` adds input and output."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedqssl.device.arguments import flattens_all, mean_arguments, pair, pools_to_one, rest
from fedqssl.lowbit.fp32_layers import ClippedReLU, FullConv2d, FullLinear, effective_weight
from fedqssl.lowbit.layers import InputCodes, LowBitConv2d, LowBitLinear, LowBitNorm, RangeCodes, TanhCodes
from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.models.contrast import LEAST, SPREAD, Stretch
from fedqssl.models.network import FeatureMark


@dataclass(frozen=True)
class Value:
    """A float tensor of the graph; with a step it holds codes: code k stands for ``low + k * step``."""

    name: str
    rank: int
    step: float | None = None
    low: float = 0.0


def storage(bits: int) -> str:
    """The smallest ONNX type that holds codes of this many bits."""
    return "UINT4" if bits <= 4 else "UINT8" if bits <= 8 else "UINT16"


class GraphWriter:
    """Collects nodes and initializers; every ``_write_...`` method translates one kind of node."""

    def __init__(self, onnx: Any, full: bool) -> None:
        self.onnx, self.full = onnx, full
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._known: dict[str, str] = {}
        self._count = 0

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        self._count += 1
        name = output or f"{kind.lower()}_{self._count:04d}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], name=f"node_{name}", **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """A float32 initializer (or of ``dtype``), shared by all that ask for the same name."""
        if name not in self._known:
            array = np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value, dtype=dtype)
            self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
            self._known[name] = name
        return name

    def number(self, value: float) -> str:
        """A scalar."""
        return self.constant(f"number_{value!r}", value)

    def pixels(self, name: str) -> Value:
        """The input as codes (uint8 pixels are the codes), or as ``value / 255`` at full precision."""
        cast = self.op("Cast", name, to=self.onnx.TensorProto.FLOAT)
        if self.full:
            return Value(self.op("Div", cast, self.number(255.0)), 4)
        return Value(cast, 4, 1.0 / 255)

    def floats(self, value: Value) -> str:
        """The name of the float view."""
        if value.step is None:
            return value.name
        scaled = self.op("Mul", value.name, self.number(value.step))
        return self.op("Add", scaled, self.number(value.low)) if value.low else scaled

    def append(self, model: fx.GraphModule, source: Value, prefix: str = "") -> Value:
        """Translate a whole graph of one input and one output; names of initializers start with ``prefix``."""
        found: dict[fx.Node, Value] = {}
        for node in model.graph.nodes:
            if node.op == "placeholder":
                found[node] = source
            elif node.op == "output":
                (result,) = node.args
                return found[result]
            else:
                found[node] = self._translate(model, node, found, prefix)
        raise ValueError("the graph has no output")

    def _translate(self, model: fx.GraphModule, node: fx.Node, found: dict[fx.Node, Value], prefix: str) -> Value:
        source: Any = node
        what, write = str(node.target), _FUNCTIONS.get(node.target)
        if node.op == "call_module":
            source = model.get_submodule(str(node.target))
            what += f" ({type(source).__name__})"
            write = next((write for kind, write in _MODULES.items() if isinstance(source, kind)), None)
            if write is None and any(source.children()) and len(node.all_input_nodes) == 1:
                given = found[node.all_input_nodes[0]]  # skipped as a whole (lowbit.skip): its own graph, in floats
                inside = Value(self.floats(given), given.rank)
                return self.append(fx.symbolic_trace(source), inside, f"{prefix}{node.target}.")
        if write is None:
            raise ValueError(f"the ONNX export has no counterpart of {what}; use --format fedqssl")
        return write(self, source, prefix + str(node.target), [found[a] for a in node.all_input_nodes])

    def weight(self, weight: LowBitWeight, name: str) -> tuple[str, float]:
        """The look-up of a layer's codes, and the factor that is left to multiply its output with."""
        element = getattr(self.onnx.TensorProto, storage(weight.bits))
        codes = weight.unpacked().to(torch.int32).numpy().astype(np.uint16 if weight.bits > 8 else np.uint8)
        if weight.bits <= 4:
            data = self.onnx.helper.make_tensor(name, element, codes.shape, _nibbles(codes), raw=True)
        else:
            data = self.onnx.numpy_helper.from_array(codes, name)
        self.initializers.append(data)
        index = self.op("Cast", name, to=self.onnx.TensorProto.INT32)
        top = 2**weight.bits - 1
        if weight.integral:  # levels are odd integers over top: the codebook is the same for every layer
            odd = np.arange(-top, top + 1, 2)
            factor = 1.0 / top if weight.absorbed and weight.m > 0 else weight.m / top
            return self.op("Gather", self.constant("codebook", odd), index), factor
        return self.op("Gather", self.constant(f"{name}.codebook", weight._weight_table()), index), 1.0

    def _add_bias(self, name: str, y: str, bias: Tensor | None, dims: int) -> str:
        if bias is None:
            return y
        return self.op("Add", y, self.constant(f"{name}.bias", bias.detach().view(-1, *(1,) * dims)))

    def quantized(self, levels: str, rank: int, bits: int, step: float, low: float = 0.0) -> Value:
        """Codes ``round(clip(levels, 0, 2^bits - 1))``, half to even."""
        clipped = self.op("Clip", levels, self.number(0.0), self.number(float(2**bits - 1)))
        return Value(self.op("Round", clipped), rank, step, low)


def _nibbles(codes: np.ndarray[Any, Any]) -> bytes:
    """Two 4-bit codes a byte, the first in the low half."""
    flat = codes.reshape(-1).astype(np.uint8)
    flat = np.pad(flat, (0, len(flat) % 2))
    return bytes((flat[::2] | flat[1::2] << 4).tobytes())


def _conv_attributes(m: Any, padding: tuple[int, int]) -> dict[str, Any]:
    shape = {"kernel_shape": list(m.kernel_size), "strides": list(m.stride), "dilations": list(m.dilation)}
    return {**shape, "pads": [*padding, *padding], "group": m.groups}


def _lowbit_conv(w: GraphWriter, m: LowBitConv2d, name: str, inputs: list[Value]) -> Value:
    """Convolve codes with integers (exact in float32 up to 2^24), then multiply by the scales at once."""
    (x,) = inputs
    look_up, factor = w.weight(m.weight, name)
    codes = x.step is not None and x.low == 0
    y = w.op("Conv", x.name if codes else w.floats(x), look_up, **_conv_attributes(m, m.padding))
    scale = factor * x.step if codes and x.step is not None else factor
    return Value(w._add_bias(name, w.op("Mul", y, w.number(scale)), m.bias, 2), 4)


def _lowbit_linear(w: GraphWriter, m: LowBitLinear, name: str, inputs: list[Value]) -> Value:
    look_up, factor = w.weight(m.weight, name)
    y = w.op("Gemm", w.floats(inputs[0]), look_up, transB=1)
    return Value(w._add_bias(name, w.op("Mul", y, w.number(factor)), m.bias, 0), 2)


def _column(x: Tensor, dims: int) -> Tensor:
    return x.detach().float().view(-1, *(1,) * dims)


def _lowbit_norm(w: GraphWriter, m: LowBitNorm, name: str, inputs: list[Value]) -> Value:
    """The kernel's own order: ``x_hat``, affine, residual, scale, clip, round."""
    z = w.floats(inputs[0])
    if m.normalizes:
        if m.running_mean is None or m.running_var is None:
            raise ValueError(f"{name} has no running statistics, so it cannot be exported")
        inverse = (m.running_var.double() + m.eps).rsqrt()
        dims = inputs[0].rank - 2
        z = w.op("Mul", z, w.constant(f"{name}.hat_mul", _column(inverse, dims)))
        z = w.op("Add", z, w.constant(f"{name}.hat_add", _column(-m.running_mean.double() * inverse, dims)))
        if m.weight is not None:
            z = w.op("Mul", z, w.constant(f"{name}.weight", _column(m.weight, dims)))
        if m.bias is not None:
            z = w.op("Add", z, w.constant(f"{name}.bias", _column(m.bias, dims)))
    if len(inputs) > 1:
        z = w.op("Add", z, w.floats(inputs[1]))
    if not m.activate:
        return Value(z, inputs[0].rank)
    bits = m.precision.activation
    top = 2**bits - 1
    return w.quantized(w.op("Mul", z, w.number(top / m.clip)), inputs[0].rank, bits, m.clip / top)


def _range_codes(w: GraphWriter, m: RangeCodes, name: str, inputs: list[Value]) -> Value:
    low, high = float(m.low), float(m.high)
    step = (high - low) / (2**m.bits - 1) if high > low else 1.0
    x = w.floats(inputs[0])
    if low:
        x = w.op("Sub", x, w.number(low))
    return w.quantized(w.op("Mul", x, w.number(1.0 / step)), inputs[0].rank, m.bits, step, low)


def _tanh_codes(w: GraphWriter, m: TanhCodes, name: str, inputs: list[Value]) -> Value:
    z = w.floats(inputs[0])
    if len(inputs) > 1:
        z = w.op("Add", z, w.floats(inputs[1]))
    top = 2**m.bits - 1
    levels = w.op("Mul", w.op("Tanh", w.op("Relu", z)), w.number(float(top)))
    return w.quantized(levels, inputs[0].rank, m.bits, 1.0 / top)


def _same(w: GraphWriter, m: nn.Module, name: str, inputs: list[Value]) -> Value:
    return inputs[0]


def _float_weight(m: nn.Conv2d | nn.Linear) -> Tensor:
    """What a layer computes with at full precision, or if it was skipped by the conversion (``lowbit.skip``)."""
    return effective_weight(m.weight, m.options, m.absorbed) if isinstance(m, (FullConv2d, FullLinear)) else m.weight


def _float_conv(w: GraphWriter, m: nn.Conv2d, name: str, inputs: list[Value]) -> Value:
    if m.padding_mode != "zeros":
        raise ValueError(f"the ONNX export knows no padding_mode {m.padding_mode!r} ({name}); use --format fedqssl")
    weight = w.constant(f"{name}.weight", _float_weight(m))
    padding = m.padding
    if isinstance(padding, str):
        same = padding == "same"
        padding = tuple(d * (k - 1) // 2 if same else 0 for d, k in zip(m.dilation, m.kernel_size, strict=True))
    y = w.op("Conv", w.floats(inputs[0]), weight, **_conv_attributes(m, padding))  # type: ignore[arg-type]
    return Value(w._add_bias(name, y, m.bias, 2), 4)


def _float_linear(w: GraphWriter, m: nn.Linear, name: str, inputs: list[Value]) -> Value:
    weight = w.constant(f"{name}.weight", _float_weight(m))
    return Value(w._add_bias(name, w.op("Gemm", w.floats(inputs[0]), weight, transB=1), m.bias, 0), 2)


def _batch_norm(w: GraphWriter, m: Any, name: str, inputs: list[Value]) -> Value:
    if m.running_mean is None:
        raise ValueError(f"{name} has no running statistics, so it cannot be exported")
    ones = torch.ones_like(m.running_mean)
    parts = {"weight": ones if m.weight is None else m.weight, "bias": 0 * ones if m.bias is None else m.bias}
    parts |= {"mean": m.running_mean, "var": m.running_var}
    names = [w.constant(f"{name}.{part}", value) for part, value in parts.items()]
    return Value(w.op("BatchNormalization", w.floats(inputs[0]), *names, epsilon=m.eps), inputs[0].rank)


def _clipped_relu(w: GraphWriter, m: ClippedReLU, name: str, inputs: list[Value]) -> Value:
    z = w.floats(inputs[0])
    if m.options.activation_quantizer == "tanh":
        return Value(w.op("Tanh", w.op("Relu", z)), inputs[0].rank)
    return Value(w.op("Clip", z, w.number(0.0), w.number(m.options.activation_clip)), inputs[0].rank)


def _relu(w: GraphWriter, source: Any, name: str, inputs: list[Value]) -> Value:
    return Value(w.op("Relu", w.floats(inputs[0])), inputs[0].rank)


def _pool(w: GraphWriter, m: Any, name: str, inputs: list[Value]) -> Value:
    """Max and average pooling; a maximum of codes is the code of the maximum, but floats keep it simple."""
    pads = [*pair(m.padding), *pair(m.padding)]
    words: dict[str, Any] = {"kernel_shape": list(pair(m.kernel_size)), "strides": list(pair(m.stride)), "pads": pads}
    if isinstance(m, nn.MaxPool2d):
        kind, odd = "MaxPool", pair(m.dilation) != (1, 1) or m.return_indices
    else:
        kind, odd, words["count_include_pad"] = "AveragePool", m.divisor_override, int(m.count_include_pad)
    if m.ceil_mode or odd:
        raise ValueError(f"the ONNX export does not know these settings of {name}: {m}; use --format fedqssl")
    return Value(w.op(kind, w.floats(inputs[0]), **words), 4)


def _global_pool(w: GraphWriter, source: Any, name: str, inputs: list[Value]) -> Value:
    if not pools_to_one(source):
        raise ValueError(f"the ONNX export knows adaptive pooling to 1x1 only, not {name}; use --format fedqssl")
    kind = "GlobalMaxPool" if isinstance(source, nn.AdaptiveMaxPool2d) else "GlobalAveragePool"
    return Value(w.op(kind, w.floats(inputs[0])), 4)


def _flatten(w: GraphWriter, source: Any, name: str, inputs: list[Value]) -> Value:
    if not flattens_all(source):
        raise ValueError(f"the ONNX export knows flattening from dimension 1 only, not {name}; use --format fedqssl")
    return Value(w.op("Flatten", inputs[0].name, axis=1), 2, inputs[0].step, inputs[0].low)


def _mean(w: GraphWriter, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    dims, keep = mean_arguments(node)
    if dims is None:
        raise ValueError("the ONNX export knows mean(x, dim) only; use --format fedqssl")
    axes = w.constant(f"axes_{dims}", [dims] if isinstance(dims, int) else list(dims), np.int64)
    rank = inputs[0].rank if keep else inputs[0].rank - (1 if isinstance(dims, int) else len(dims))
    return Value(w.op("ReduceMean", w.floats(inputs[0]), axes, keepdims=int(keep)), rank)


def _sum(w: GraphWriter, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    left, right = inputs if len(inputs) == 2 else inputs * 2
    return Value(w.op("Add", w.floats(left), w.floats(right)), max(left.rank, right.rank))


def _to_tensor(w: GraphWriter, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    return Value(w.floats(inputs[0]), inputs[0].rank)


def _cat(w: GraphWriter, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    given = rest(node)
    return Value(w.op("Concat", *(w.floats(v) for v in inputs), axis=given[0] if given else 0), inputs[0].rank)


def _stretch(w: GraphWriter, m: Stretch, name: str, inputs: list[Value]) -> Value:
    """Whole images to one mean and spread, as 8-bit codes."""
    x, axes = w.floats(inputs[0]), w.constant("axes_of_an_image", [1, 2, 3], np.int64)
    centred = w.op("Sub", x, w.op("ReduceMean", x, axes, keepdims=1))
    variance = w.op("ReduceMean", w.op("Mul", centred, centred), axes, keepdims=1)
    factor = w.op("Div", w.number(SPREAD), w.op("Max", w.op("Sqrt", variance), w.number(LEAST)))
    y = w.op("Add", w.op("Mul", centred, factor), w.number(0.5))
    codes = w.quantized(w.op("Mul", y, w.number(255.0)), 4, 8, 1.0 / 255)
    return Value(w.floats(codes), 4) if w.full else codes


Write = Callable[[GraphWriter, Any, str, list[Value]], Value]
_MODULES: dict[Any, Write] = {
    LowBitConv2d: _lowbit_conv,
    LowBitLinear: _lowbit_linear,
    LowBitNorm: _lowbit_norm,
    RangeCodes: _range_codes,
    TanhCodes: _tanh_codes,
    nn.Conv2d: _float_conv,
    nn.Linear: _float_linear,
    nn.ReLU: _relu,
    ClippedReLU: _clipped_relu,
    (nn.BatchNorm1d, nn.BatchNorm2d): _batch_norm,
    (InputCodes, FeatureMark, nn.Identity, nn.Dropout, nn.Dropout2d): _same,
    (nn.MaxPool2d, nn.AvgPool2d): _pool,
    (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d): _global_pool,
    nn.Flatten: _flatten,
    Stretch: _stretch,
}
_FUNCTIONS: dict[Any, Write] = {
    torch.flatten: _flatten,
    "flatten": _flatten,
    "to_tensor": _to_tensor,
    "mean": _mean,
    torch.mean: _mean,
    operator.add: _sum,
    operator.iadd: _sum,
    torch.add: _sum,
    "add": _sum,
    F.adaptive_avg_pool2d: _global_pool,
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_"), _relu),
    torch.cat: _cat,
    torch.concat: _cat,
}

__all__ = ["GraphWriter", "Value", "storage"]
