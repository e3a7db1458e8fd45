"""The operations in numpy: the specification that the C code follows bit for bit, for many images at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedqssl.device.c_export.operations import (
    Average,
    Convolution,
    Map,
    Maximum,
    Network,
    Operation,
    Rescale,
    Stretch,
    output_side,
)

Integers = NDArray[np.int64]


def simulate(network: Network, images: NDArray[np.uint8]) -> Mapping[Map, Integers]:
    """All maps of a network, (N, height, width, channels) each, for images of that shape."""
    found: dict[Map, Integers] = {network.image: images.astype(np.int64)}
    for operation in network.operations:
        carry_out(operation, found)
    return found


def carry_out(operation: Operation, found: MutableMapping[Map, Integers]) -> None:
    """One operation: reads its sources from ``found`` and puts its target there."""
    x, m = found[operation.source], operation.target
    if isinstance(operation, Convolution):
        residual = None if operation.residual is None else found[operation.residual]
        found[m] = _convolution(operation, x, residual)
    elif isinstance(operation, Average):
        vector = found.setdefault(m, np.zeros((len(x), m.height, m.width, m.channels), dtype=np.int64))
        made = _average(operation, x).reshape(len(x), -1)
        vector.reshape(len(x), -1)[:, operation.at : operation.at + made.shape[1]] = made
    elif isinstance(operation, Stretch):
        found[m] = np.stack([_stretch(operation, image) for image in x])
    else:
        found[m] = _maximum(operation, x)


def pattern(size: int) -> NDArray[np.uint8]:
    """The test pattern that ``example_main.c`` draws: bytes of a linear congruential generator."""
    state, found = 1, np.empty(size, dtype=np.uint8)
    for i in range(size):
        state = (state * 1664525 + 1013904223) % 2**32
        found[i] = state >> 24
    return found


def _codes(levels: Integers, shift: int, top: int) -> Integers:
    clipped: Integers = np.clip(levels >> shift, 0, top)
    return clipped


def _wide(values: Integers, shift: int) -> Integers:
    """Towards zero, as the C code does, which does not shift negative numbers."""
    return np.where(values >= 0, values >> shift, -(-values >> shift))


def _levels(sums: Integers, rescale: Rescale) -> Integers:
    found: Integers = sums * rescale.multiplier + rescale.offset
    return found


def _convolution(operation: Convolution, x: Integers, residual: Integers | None) -> Integers:
    weights = torch.from_numpy(operation.integers().transpose(0, 3, 1, 2).astype(np.float64))
    maps = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float64))
    sums = F.conv2d(maps, weights, None, operation.stride, operation.padding)  # exact: far below 2^53
    levels = _levels(sums.numpy().transpose(0, 2, 3, 1).astype(np.int64), operation.rescale)
    if residual is not None:
        levels = levels + residual * operation.residual_multiplier
    if operation.target.kind == "wide":
        return _wide(levels, operation.rescale.shift)
    return _codes(levels, operation.rescale.shift, operation.top)


def _average(operation: Average, x: Integers) -> Integers:
    """In float32, value by value in the order of the C code."""
    values, one = operation.values[x], np.float32
    (_, wide), (down, across) = operation.window, operation.stride
    rows, columns = (
        output_side(n, w, s) for n, w, s in zip(x.shape[1:3], operation.window, operation.stride, strict=True)
    )
    total = np.zeros((len(x), rows, columns, x.shape[3]), dtype=np.float32)
    group = total.copy()
    for i in range(operation.area):
        top, left = divmod(i, wide)
        group = (
            group
            + values[:, top : top + down * rows : down, left : left + across * columns : across][:, :rows, :columns]
        )
        if (i + 1) % operation.group == 0:
            total, group = total + group, np.zeros_like(group)
    mean = (group + total) / one(operation.area) / one(operation.divisor)
    levels = (mean - one(operation.low)) * one(operation.inverse)
    codes: Integers = np.rint(np.clip(levels, 0, operation.top)).astype(np.int64)
    return codes


def _stretch(operation: Stretch, image: Integers) -> Integers:
    """One image, exact in integers; ``templates/stretch.c`` explains the steps."""
    total, squares = int(image.sum()), int(np.square(image).sum())
    square = max(image.size * squares - total**2, (operation.least * image.size) ** 2)
    whole = math.isqrt(square)
    rest = square - whole**2
    deviations = np.arange(256) * image.size - total
    a = operation.spread * np.abs(deviations)
    m = a // whole

    def above() -> Integers:
        found: Integers = (a - m * whole) * (a + m * whole) - m * m * rest
        return found

    while (less := above() < 0).any():
        m = m - less
    codes = np.where(deviations < 0, 127 - m, 128 + m)
    ties = 2 * (np.where(deviations < 0, 128 - m, 128 + m) // 2)
    table: Integers = np.clip(np.where(above() == 0, ties, codes), 0, 255)
    return table[image]


def _maximum(operation: Maximum, x: Integers) -> Integers:
    maps = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float64))
    found = F.max_pool2d(maps, operation.window, operation.stride, operation.padding)
    return found.numpy().transpose(0, 2, 3, 1).astype(np.int64)


__all__ = ["carry_out", "pattern", "simulate"]
