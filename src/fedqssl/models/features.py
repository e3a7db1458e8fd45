"""What counts as the features of a network: its last maps pooled, the same in quarters, or several stages side by side.

Works on any traced model of any bitwidth: a stage ends with the last activation before the maps get smaller, which is the same
place at every precision.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, fx, nn

from fedqssl.lowbit.activation import Activation
from fedqssl.lowbit.fp32_layers import ClippedReLU
from fedqssl.lowbit.layers import LowBitNorm, TanhCodes
from fedqssl.models.network import SelfSupervisedNetwork, feature_extractor

Features = Literal["pooled", "grid2", "stages", "pyramid"]


class Part(NamedTuple):
    """One part of the features: a stage counted from the end (0 is the last), averaged over a grid of so many cells a side."""

    stage: int
    cells: int


class FeatureKind(NamedTuple):
    """One kind of features: a line about it, and its parts, side by side; no parts: the network's own output.

    Where parts are ``weighed``, coarse to fine, a classifier's labels decide how much the finer ones count.
    """

    description: str
    parts: tuple[Part, ...] = ()
    weighed: bool = False


FEATURES: dict[str, FeatureKind] = {
    "pooled": FeatureKind("the last maps, averaged: one number per channel"),
    "grid2": FeatureKind(
        "the last maps, averaged over each quarter of the image: where something is counts", (Part(0, 2),)
    ),
    "stages": FeatureKind(
        "the last maps averaged, beside a 4x4 grid of the stage in the middle: shapes and places count",
        (Part(0, 1), Part(2, 4)),
    ),
    "pyramid": FeatureKind(
        "the last maps averaged, beside a 4x4 and an 8x8 grid of the stage in the middle; labels decide how much the finer "
        "grids count",
        (Part(0, 1), Part(2, 4), Part(2, 8)),
        weighed=True,
    ),
}
"""Kinds of features by name."""
_POOL = "features_pool_"


class _Shapes(fx.Interpreter):
    """Runs a graph once and notes which nodes are activations, with the side of their maps."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.maps: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, (Tensor, Activation)) and len(result.shape) == 4 and _is_activation(self.module, n):
            self.maps[n] = int(result.shape[-1])
        return result


def _is_activation(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if isinstance(module, LowBitNorm):
            return module.activate
        return isinstance(module, (nn.ReLU, ClippedReLU, TanhCodes))
    return node.target in ("relu", "relu_", torch.relu, torch.relu_, nn.functional.relu)


def stage_ends(model: fx.GraphModule, image: Tensor) -> list[tuple[fx.Node, int]]:
    """The last activation at every size of the maps, first stage first, with that size; ``image`` is (1, C, H, W)."""
    modes = [(module, module.training) for module in model.modules()]
    found = _Shapes(model.eval())
    try:
        with torch.no_grad():
            found.run(image)
    finally:
        for module, training in modes:
            module.training = training
    ends = {side: node for node, side in found.maps.items()}  # later nodes of the same side replace earlier ones
    return [(node, side) for side, node in ends.items()]


@overload
def features_of(model: fx.GraphModule, kind: str = ..., channels: int = ..., size: int = ...) -> fx.GraphModule: ...
@overload
def features_of(model: nn.Module, kind: str = ..., channels: int = ..., size: int = ...) -> nn.Module: ...
def features_of(model: nn.Module, kind: str = "pooled", channels: int = 3, size: int = 32) -> nn.Module:
    """The part of a (converted) network that gives features of this kind; weights are shared with ``model``.

    Args:
        model: a :class:`SelfSupervisedNetwork`, or what ``to_lowbit`` made of one.
        kind: one of :data:`FEATURES`.
        channels: of an image.
        size: of an image, height and width.

    Raises:
        ValueError: an unknown kind, or a network with fewer stages than the kind looks at.
    """
    if kind not in FEATURES:
        raise ValueError(f"features must be one of {', '.join(FEATURES)}, not {kind!r}")
    pooled = feature_extractor(model)
    if kind == "pooled":
        return pooled
    if isinstance(model, SelfSupervisedNetwork):
        traced = fx.symbolic_trace(pooled)
        traced.train(model.training)
    else:
        assert isinstance(pooled, fx.GraphModule)
        traced = pooled
    return with_parts(traced, FEATURES[kind].parts, torch.zeros(1, channels, size, size), kind)


def with_parts(model: fx.GraphModule, parts: tuple[Part, ...], image: Tensor, kind: str) -> fx.GraphModule:
    """``model`` with these parts, side by side, as its output."""
    ends = stage_ends(model, image)
    needed = 1 + max(part.stage for part in parts)
    if len(ends) < needed:
        raise ValueError(
            f"features = {kind!r} needs a network with {needed} sizes of maps, but this one has {len(ends)}; use 'pooled'"
        )
    graph, (output,) = model.graph, model.graph.find_nodes(op="output")
    made = []
    with graph.inserting_before(output):
        for i, part in enumerate(parts):
            node, side = ends[-1 - part.stage]
            if isinstance(_module(model, node), (LowBitNorm, TanhCodes)):
                node = graph.call_method("to_tensor", (node,))
            model.add_submodule(f"{_POOL}{i}", _pool(side, part.cells))
            pooled = graph.call_module(f"{_POOL}{i}", (node,))
            made.append(graph.call_function(torch.flatten, (pooled, 1)))
        joined = made[0] if len(made) == 1 else graph.call_function(torch.cat, (made, 1))
    output.args = (joined,)
    graph.eliminate_dead_code()
    model.delete_all_unused_submodules()
    model.recompile()
    return model


def _module(model: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _pool(side: int, cells: int) -> nn.Module:
    """Averages over a grid of cells, which overlap where they do not divide the side: plain pooling, which every export knows."""
    if cells == 1:
        return nn.AdaptiveAvgPool2d(1)
    cells = min(cells, side)
    stride = side // cells
    return nn.AvgPool2d(side - (cells - 1) * stride, stride)


class _Lengths(fx.Interpreter):
    """Runs an extractor once and notes how many numbers each part of its features has."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.parts: list[int] = []

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_module" and str(n.target).startswith(_POOL):
            self.parts.append(int(result[0].numel()))
        return result


def part_lengths(model: fx.GraphModule, channels: int = 3, size: int = 32) -> tuple[int, ...]:
    """Numbers in each part of the features that :func:`with_parts` put side by side."""
    found = _Lengths(model.eval())
    with torch.no_grad():
        found.run(torch.zeros(1, channels, size, size))
    return tuple(found.parts)


def feature_dim(model: nn.Module, channels: int = 3, size: int = 32) -> int:
    """Length of the features that an extractor gives."""
    training = model.training
    model.eval()
    with torch.no_grad():
        found = int(model(torch.zeros(1, channels, size, size)).shape[1])
    model.train(training)
    return found


__all__ = [
    "FEATURES",
    "FeatureKind",
    "Features",
    "Part",
    "feature_dim",
    "features_of",
    "part_lengths",
    "stage_ends",
    "with_parts",
]
