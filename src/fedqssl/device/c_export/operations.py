"""What a network becomes on its way to C: a list of operations on integer maps.

A map has the order row, column, channel. ``codes`` are uint8, ``wide`` maps int32; code k stands for ``low + k * step``, a
number that only :mod:`fedqssl.device.c_export.lower` knows: the operations compute with integers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["image", "codes", "wide"]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Map:
    """A tensor of the network for one image; ``image`` is the caller's own memory."""

    height: int
    width: int
    channels: int
    kind: Kind = "codes"

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.height * self.width * self.channels


@dataclass(frozen=True, eq=False)
class Rescale:
    """``(x * multiplier + offset) / 2^shift``: a real factor and summand per channel in fixed point; one half is included."""

    multiplier: NDArray[np.int64]
    offset: NDArray[np.int64]
    shift: int


@dataclass(frozen=True, eq=False)
class Convolution:
    """Codes x odd integers, rescaled; a linear layer is one of a single pixel.

    Args:
        name: of the layer in the network.
        source: what it reads.
        target: what it writes.
        weights: codes, (out, kernel height, kernel width, in).
        bits: of a weight.
        stride: down and across.
        padding: zeros around the map, above and below, left and right.
        rescale: sums to codes of ``target``.
        top: largest code of ``target``; not used for a wide one.
        residual: a map that is added before rounding.
        residual_multiplier: what its entries are multiplied by.
    """

    name: str
    source: Map
    target: Map
    weights: NDArray[np.uint8]
    bits: int
    stride: Pair
    padding: Pair
    rescale: Rescale
    top: int
    residual: Map | None = None
    residual_multiplier: int = 0

    @property
    def taps(self) -> int:
        """Weights of an output channel."""
        return int(np.prod(self.weights.shape[1:]))

    @property
    def macs(self) -> int:
        """Multiplications for one image, padding included."""
        return self.taps * self.target.size

    def integers(self) -> NDArray[np.int64]:
        """The weights as odd integers ``2k - (2^s - 1)``."""
        odd: NDArray[np.int64] = self.weights.astype(np.int64) * 2 - (2**self.bits - 1)
        return odd


@dataclass(frozen=True, eq=False)
class Average:
    """Means over windows as codes that start at entry ``at`` of ``target``: the only operation in float32.

    ``((sum / area / divisor) - low) * inverse``, rounded half to even. Averages of few codes often lie exactly half-way between
    two codes of the classifier, where the noise of float32 decides; so they are added up as our own runtime does it.

    Args:
        name: of the layer in the network.
        source: what it reads.
        target: what it writes, or a part of it.
        at: first entry of that part.
        window: height and width.
        stride: down and across.
        values: what each code of ``source`` stands for.
        group: so many values are added up at a time, and then the sums of these groups.
        divisor: features are divided by it.
        low: lowest value of the codes of ``target``.
        inverse: codes of ``target`` per unit.
        top: largest code of ``target``.
    """

    name: str
    source: Map
    target: Map
    at: int
    window: Pair
    stride: Pair
    values: NDArray[np.float32]
    group: int
    divisor: float
    low: float
    inverse: float
    top: int

    @property
    def area(self) -> int:
        """Pixels of a window."""
        return self.window[0] * self.window[1]


@dataclass(frozen=True, eq=False)
class Maximum:
    """The largest code of every window; the padding does not count."""

    name: str
    source: Map
    target: Map
    window: Pair
    stride: Pair
    padding: Pair


@dataclass(frozen=True, eq=False)
class Stretch:
    """The contrast of a whole image: ``127.5 + spread * (x - mean) / max(std, least)``, rounded half to even.

    Exact in integers. Pixels, mean and standard deviation (of all channels together) are in 255ths; ``target`` has the shape
    of ``source``.
    """

    name: str
    source: Map
    target: Map
    spread: int
    least: int


Operation = Convolution | Average | Maximum | Stretch


@dataclass(frozen=True, eq=False)
class Network:
    """Operations in their order, from ``image`` to ``scores``, which are logits times ``2^score_bits``."""

    operations: tuple[Operation, ...]
    image: Map
    scores: Map
    score_bits: int
    bits: int


def output_side(size: int, window: int, stride: int, padding: int = 0) -> int:
    """Windows that fit along one side of a map."""
    return (size + 2 * padding - window) // stride + 1


def sources(operation: Operation) -> tuple[Map, ...]:
    """The maps that an operation reads."""
    if isinstance(operation, Convolution) and operation.residual is not None:
        return operation.source, operation.residual
    return (operation.source,)


__all__ = [
    "Average",
    "Convolution",
    "Map",
    "Maximum",
    "Network",
    "Operation",
    "Rescale",
    "Stretch",
    "output_side",
    "sources",
]
