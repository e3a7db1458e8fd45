"""Settings of operators without weights, the same whether a model calls a module, a function or a method."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def pair(value: Any) -> tuple[int, int]:
    """``3`` and ``(3, 3)`` as a pair: height and width."""
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def rest(source: Any) -> list[Any]:
    """The arguments of a function besides tensors; the settings of the equivalent module."""
    if isinstance(source, fx.Node):
        return [*source.args[1:], *source.kwargs.values()]
    return [source.start_dim, source.end_dim] if isinstance(source, nn.Flatten) else [source.output_size]


def pools_to_one(source: Any) -> bool:
    """Whether adaptive pooling, a module or a call, gives one number per channel."""
    return rest(source) in ([1], [(1, 1)], [[1, 1]])


def flattens_all(source: Any) -> bool:
    """Whether flattening, a module or a call, leaves one dimension per image."""
    return rest(source) in ([1], [1, -1])


def mean_arguments(node: fx.Node) -> tuple[Any, bool]:
    """The dimensions of a mean (None: all of them), and whether they are kept."""
    given = {**dict(zip(("dim", "keepdim"), node.args[1:], strict=False)), **node.kwargs}
    return given.get("dim"), bool(given.get("keepdim", False))


__all__ = ["flattens_all", "mean_arguments", "pair", "pools_to_one", "rest"]
