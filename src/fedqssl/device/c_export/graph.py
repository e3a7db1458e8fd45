"""Node by node from a device model's graphs to integer operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedqssl.device.arguments import flattens_all, mean_arguments, pair, pools_to_one, rest
from fedqssl.device.c_export.lower import ELSE, PIXEL_TOP, CExportError, Lowering
from fedqssl.device.c_export.operations import Map, Network
from fedqssl.device.c_export.values import Codes, Flat, Value, View
from fedqssl.lowbit.layers import InputCodes, LowBitConv2d, LowBitLinear, LowBitNorm, RangeCodes, TanhCodes
from fedqssl.models.contrast import Stretch
from fedqssl.models.network import FeatureMark

if TYPE_CHECKING:
    from fedqssl.device.model import DeviceModel

MOST_BITS = 8


def lowered(model: DeviceModel) -> Network:
    """The whole model, from pixels to scores, as integer operations.

    Raises:
        CExportError: names what has no counterpart.
    """
    m = model.manifest
    if m.bits > MOST_BITS:
        raise CExportError(f"the C export takes models of 1 to {MOST_BITS} bits, and this one has {m.bits}; {ELSE}")
    image, lowering = Map(m.size, m.size, m.channels, "image"), Lowering()
    found = _walk(lowering, model.extractor, View(Codes(image, 1.0 / PIXEL_TOP, PIXEL_TOP)))
    if model.classifier is not None:
        if isinstance(found, View) and found.map.height == found.map.width == 1:
            found = Flat((found,))  # behind a linear layer there is nothing to flatten
        if not isinstance(found, Flat):
            raise CExportError(f"the model's features are not averages of codes; {ELSE}")
        scaled = replace(found, divisor=model.classifier.scale)
        found = _walk(lowering, model.classifier.model, scaled, "classifier.")
    scores, score_bits = lowering.scores(found)
    return Network(tuple(lowering.operations), image, scores, score_bits, m.bits)


def _walk(lowering: Lowering, model: fx.GraphModule, given: Value, prefix: str = "") -> Value:
    found: dict[fx.Node, Value] = {}
    for node in model.graph.nodes:
        if node.op == "placeholder":
            found[node] = given
        elif node.op == "output":
            (result,) = node.args
            return found[result]
        else:
            inputs = [found[a] for a in node.all_input_nodes]
            found[node] = _translated(lowering, model, node, inputs, prefix + str(node.target))
    raise CExportError("the graph has no output")


def _translated(lowering: Lowering, model: fx.GraphModule, node: fx.Node, inputs: list[Value], name: str) -> Value:
    source: Any = node
    what, write = name, _FUNCTIONS.get(node.target)
    if node.op == "call_module":
        source = model.get_submodule(str(node.target))
        what = f"{name} ({type(source).__name__})"
        if any(True for _ in source.parameters()) and not isinstance(source, _LOWBIT):
            raise CExportError(f"{what} stays in floats (lowbit.skip), but C computes in integers; {ELSE}")
        write = next((write for kind, write in _MODULES.items() if isinstance(source, kind)), None)
    if write is None:
        raise CExportError(f"the C export has no counterpart of {what}; {ELSE}")
    return write(lowering, source, name, inputs)


def _layer(lowering: Lowering, layer: LowBitConv2d | LowBitLinear, name: str, inputs: list[Value]) -> Value:
    return lowering.sums(name, layer, inputs[0])


def _norm(lowering: Lowering, norm: LowBitNorm, name: str, inputs: list[Value]) -> Value:
    source, *residual = inputs
    if norm.activate:
        return lowering.activated(name, norm, source, residual[0] if residual else None)
    return lowering.normalized(name, norm, source)


def _range_codes(lowering: Lowering, codes: RangeCodes, name: str, inputs: list[Value]) -> Value:
    return lowering.rounded(name, codes, inputs[0])


def _input_codes(lowering: Lowering, codes: InputCodes, name: str, inputs: list[Value]) -> Value:
    (given,) = inputs
    assert isinstance(given, View)
    return given.source


def _stretch(lowering: Lowering, source: Stretch, name: str, inputs: list[Value]) -> Value:
    return lowering.stretched(name, inputs[0])


def _tanh_codes(lowering: Lowering, codes: TanhCodes, name: str, inputs: list[Value]) -> Value:
    raise CExportError(f"the C export does not know lowbit.activation_quantizer = 'tanh' ({name}); {ELSE}")


def _same(lowering: Lowering, source: Any, name: str, inputs: list[Value]) -> Value:
    return inputs[0]


def _to_tensor(lowering: Lowering, source: Any, name: str, inputs: list[Value]) -> Value:
    (given,) = inputs
    return View(given) if isinstance(given, Codes) else given


def _unaveraged(source: Any, name: str, given: Value) -> View:
    if not isinstance(given, View) or given.averaged:
        raise CExportError(f"{name} does not pool a map of codes; {ELSE}")
    return given


def _pool(lowering: Lowering, pool: nn.MaxPool2d | nn.AvgPool2d, name: str, inputs: list[Value]) -> Value:
    window, stride, padding = (pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
    largest = isinstance(pool, nn.MaxPool2d)
    odd = pool.return_indices or pair(pool.dilation) != (1, 1) if largest else pool.divisor_override or any(padding)
    if pool.ceil_mode or odd:
        raise CExportError(f"the C export does not know these settings of {name}: {pool}; {ELSE}")
    view = _unaveraged(pool, name, inputs[0])
    return lowering.maximum(name, view, window, stride, padding) if largest else View(view.source, window, stride)


def _global_pool(lowering: Lowering, source: Any, name: str, inputs: list[Value]) -> Value:
    if not pools_to_one(source):
        raise CExportError(f"the C export knows adaptive pooling to 1x1 only, not {name}; {ELSE}")
    view = _unaveraged(source, name, inputs[0])
    whole = view.source.map.height, view.source.map.width
    if isinstance(source, nn.AdaptiveMaxPool2d):
        return lowering.maximum(name, view, whole, whole, (0, 0))
    return View(view.source, whole, whole, grouped=True)


def _mean(lowering: Lowering, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    dims, keep = mean_arguments(node)
    if not isinstance(dims, (list, tuple)) or sorted(d % 4 for d in dims) != [2, 3]:
        raise CExportError(f"the C export knows means over height and width only, not {name}; {ELSE}")
    view = _unaveraged(node, name, inputs[0])
    whole = view.source.map.height, view.source.map.width
    averaged = View(view.source, whole, whole, grouped=True)
    return averaged if keep else Flat((averaged,))


def _flatten(lowering: Lowering, source: Any, name: str, inputs: list[Value]) -> Value:
    (given,) = inputs
    if isinstance(given, Flat):
        return given
    if not isinstance(given, View) or not flattens_all(source):
        raise CExportError(f"the C export knows flattening of a whole map only, not {name}; {ELSE}")
    return Flat((given,))


def _cat(lowering: Lowering, node: fx.Node, name: str, inputs: list[Value]) -> Value:
    parts = [given for given in inputs if isinstance(given, Flat) and given.divisor == 1]
    if len(parts) != len(inputs) or rest(node) not in ([1], [-1]):
        raise CExportError(f"the C export joins vectors only, not {name}; {ELSE}")
    return Flat(tuple(view for part in parts for view in part.views))


Write = Callable[[Lowering, Any, str, list[Value]], Value]
_LOWBIT = LowBitConv2d, LowBitLinear, LowBitNorm
_MODULES: dict[Any, Write] = {
    (LowBitConv2d, LowBitLinear): _layer,
    LowBitNorm: _norm,
    RangeCodes: _range_codes,
    Stretch: _stretch,
    InputCodes: _input_codes,
    TanhCodes: _tanh_codes,
    (FeatureMark, nn.Identity, nn.Dropout, nn.Dropout2d): _same,
    (nn.MaxPool2d, nn.AvgPool2d): _pool,
    (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d): _global_pool,
    nn.Flatten: _flatten,
}
_FUNCTIONS: dict[Any, Write] = {
    "to_tensor": _to_tensor,
    "mean": _mean,
    torch.mean: _mean,
    torch.flatten: _flatten,
    "flatten": _flatten,
    F.adaptive_avg_pool2d: _global_pool,
    torch.cat: _cat,
    torch.concat: _cat,
}

__all__ = ["lowered"]
