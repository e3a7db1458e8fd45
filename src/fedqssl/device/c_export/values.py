"""What flows between the nodes of a graph while it is translated: codes, and floats that are not rounded yet.

Floats exist between two codes only: as sums that wait for their batch norm (:class:`Sums`), as float views of codes
(:class:`View`), and as feature vectors of such views (:class:`Flat`). Each becomes an operation when it is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedqssl.device.c_export.operations import Kind, Map, Pair, output_side
from fedqssl.lowbit.layers import LowBitConv2d, LowBitLinear

Reals = NDArray[np.float64]
Layer = LowBitConv2d | LowBitLinear


@dataclass(frozen=True, eq=False)
class Codes:
    """A map of codes; code k, up to ``top``, stands for ``low + k * step``.

    ``order[i]`` is the place of entry i in torch's flattened tensor; None for maps that are not flattened.
    """

    map: Map
    step: float
    top: int
    low: float = 0.0
    order: NDArray[np.int64] | None = None

    def on_grid(self, step: float, low: float, top: int) -> bool:
        """Whether these codes mean the same on another grid."""
        return self.low == low and self.top == top and abs(self.step - step) <= 1e-6 * step


@dataclass(frozen=True, eq=False)
class Sums:
    """A layer whose sums are not rounded yet: ``sum * factor + summand`` per channel."""

    name: str
    layer: Layer
    source: Codes
    factor: Reals
    summand: Reals

    def in_units(self, unit: float) -> Sums:
        """The same values, times ``unit``."""
        return replace(self, factor=self.factor * unit, summand=self.summand * unit)

    def integers(self) -> Reals:
        """The weights as odd integers, one row per output channel."""
        codes = self.layer.weight.unpacked().flatten(1).numpy().astype(np.float64)
        odd: Reals = 2 * codes - (2**self.layer.weight.bits - 1)
        return odd

    def largest_sums(self) -> Reals:
        """The largest sum that any input can give, per channel."""
        largest: Reals = np.abs(self.integers()).sum(1) * float(self.source.top)
        return largest

    def largest(self) -> float:
        """The largest value that any input can give."""
        return float((np.abs(self.factor) * self.largest_sums() + np.abs(self.summand)).max())

    def ordered(self) -> NDArray[np.uint8]:
        """The weights' codes in the order of the maps: (out, height, width, in)."""
        codes, m = self.layer.weight.unpacked().numpy().astype(np.uint8), self.source.map
        if isinstance(self.layer, LowBitConv2d):
            return np.ascontiguousarray(codes.transpose(0, 2, 3, 1))
        columns = codes if self.source.order is None else codes[:, self.source.order]
        return np.ascontiguousarray(columns.reshape(len(codes), m.height, m.width, m.channels))

    def target(self, kind: Kind) -> Map:
        """A map for what comes out."""
        channels, m = int(self.layer.weight.shape[0]), self.source.map
        if isinstance(self.layer, LowBitLinear):
            return Map(1, 1, channels, kind)
        sides = zip((m.height, m.width), self.layer.kernel_size, self.layer.stride, self.layer.padding, strict=True)
        height, width = (output_side(*side) for side in sides)
        return Map(height, width, channels, kind)


@dataclass(frozen=True, eq=False)
class View:
    """Codes as floats, averaged over windows (of one pixel: not averaged)."""

    source: Codes
    window: Pair = (1, 1)
    stride: Pair = (1, 1)
    grouped: bool = False
    """Added up by torch's ``mean``, which adds up groups, and not by a pooling layer."""

    @property
    def averaged(self) -> bool:
        """Whether a window has more than one pixel, or pixels are left out."""
        return (self.window, self.stride) != ((1, 1), (1, 1))

    @property
    def map(self) -> Map:
        """A map of its shape."""
        m = self.source.map
        sides = zip((m.height, m.width), self.window, self.stride, strict=True)
        height, width = (output_side(*side) for side in sides)
        return Map(height, width, m.channels)


@dataclass(frozen=True, eq=False)
class Flat:
    """Views side by side as one vector, divided by ``divisor``."""

    views: tuple[View, ...]
    divisor: float = 1.0


Value = Codes | Sums | View | Flat


def torch_order(maps: Sequence[Map]) -> NDArray[np.int64]:
    """For each entry of maps side by side its place in torch's flattened tensors (channel, row, column), side by side."""
    found, start = [], 0
    for m in maps:
        places = np.arange(m.size).reshape(m.channels, m.height, m.width)
        found.append(start + places.transpose(1, 2, 0).ravel())
        start += m.size
    return np.concatenate(found)


def reals(x: Tensor) -> Reals:
    """A tensor of floats as float64."""
    return x.detach().double().numpy()


__all__ = ["Codes", "Flat", "Sums", "Value", "View", "reals", "torch_order"]
