"""Layers as integer operations: where floats are rounded to codes, an operation is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedqssl.device.c_export import fixed_point
from fedqssl.device.c_export.operations import (
    Average,
    Convolution,
    Map,
    Maximum,
    Operation,
    Pair,
    Rescale,
    Stretch,
    output_side,
)
from fedqssl.device.c_export.values import Codes, Flat, Layer, Sums, Value, View, reals, torch_order
from fedqssl.lowbit.layers import LowBitConv2d, LowBitNorm, RangeCodes
from fedqssl.models.contrast import LEAST, SPREAD

ELSE = "use --format onnx"
PIXEL_TOP = 255
MOST_STRETCHED = 2**20
"""Values of an image whose contrast is stretched: its squares then fit 64 bits."""
TORCH_GROUP = 16
"""Values that torch's ``mean`` adds up before it adds up such sums (of at most 256 values)."""


class CExportError(ValueError):
    """The model cannot be written as C; the message names what stands in the way."""


class Lowering:
    """Collects operations; :mod:`fedqssl.device.c_export.graph` calls a method for each node of a graph."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def stretched(self, name: str, source: Value) -> View:
        """The contrast of an image in pixels; see :class:`fedqssl.models.contrast.Stretch`."""
        if not isinstance(source, View) or source.averaged or not source.source.on_grid(1 / PIXEL_TOP, 0.0, PIXEL_TOP):
            raise CExportError(f"{name} (Stretch) does not read an image; {ELSE}")
        m = source.source.map
        if m.size > MOST_STRETCHED:
            raise CExportError(f"the C export stretches images of at most {MOST_STRETCHED:,} values ({name}); {ELSE}")
        target = Map(m.height, m.width, m.channels)
        self.operations.append(Stretch(name, m, target, round(SPREAD * PIXEL_TOP), round(LEAST * PIXEL_TOP)))
        return View(replace(source.source, map=target))

    def sums(self, name: str, layer: Layer, source: Value) -> Sums:
        """A convolution or a linear layer; nothing is written down until its sums are rounded."""
        if isinstance(layer, LowBitConv2d) and (layer.groups != 1 or layer.dilation != (1, 1)):
            raise CExportError(f"the C export knows no groups and no dilation ({name}); {ELSE}")
        if not isinstance(source, Codes):
            raise CExportError(f"{name} does not read codes; {ELSE}")
        weight = layer.weight
        if not weight.integral:
            raise CExportError(
                f"the weights of {name} are not integers (lowbit.weights = {weight.options.weights!r}); {ELSE}"
            )
        if source.low and isinstance(layer, LowBitConv2d) and any(layer.padding):
            raise CExportError(f"{name} pads codes that do not start at zero; {ELSE}")
        scale = (1.0 if weight.absorbed and weight.m > 0 else weight.m) / (2**weight.bits - 1)
        channels = weight.shape[0]
        found = Sums(name, layer, source, np.full(channels, scale * source.step), np.zeros(channels))
        summand = source.low * scale * found.integers().sum(1)
        return replace(found, summand=summand if layer.bias is None else summand + reals(layer.bias))

    def normalized(self, name: str, norm: LowBitNorm, source: Value) -> Sums:
        """Batch norm as one factor and one summand per channel, from the kernel's own coefficients."""
        if not isinstance(source, Sums):
            raise CExportError(f"{name} does not follow a low-bit layer; {ELSE}")
        if not norm.normalizes:
            return source
        if norm.running_mean is None or norm.running_var is None:
            raise CExportError(f"{name} has no running statistics, so it cannot be exported")
        found = norm.coefficients(torch.empty(0, len(source.factor)), norm.weight, norm.bias)[0]
        hat_mul, hat_add, mul, add = (reals(t) for t in (found.hat_mul, found.hat_add, found.mul, found.add))
        factor, summand = source.factor * hat_mul * mul, (source.summand * hat_mul + hat_add) * mul + add
        return replace(source, factor=factor, summand=summand)

    def activated(self, name: str, norm: LowBitNorm, source: Value, residual: Value | None) -> Codes:
        """Batch norm, residual, clipped ReLU and rounding: one operation."""
        top = 2**norm.precision.activation - 1
        unit = top / norm.clip
        sums = self.normalized(name, norm, source).in_units(unit)
        target = sums.target("codes")
        added = None if residual is None else self._added(name, residual, target, unit)
        self._emit(sums, target, top, added=added)
        return Codes(target, norm.clip / top, top)

    def _added(self, name: str, residual: Value, target: Map, unit: float) -> tuple[Map, float, float]:
        """A residual's map, what its entries are multiplied by, and the largest product, in codes of the target."""
        if isinstance(residual, Sums):
            sums = residual.in_units(unit)
            keep, m = _fraction_bits(sums), sums.target("wide")
            self._emit(sums, m, 0, keep=keep)
            found = m, 2.0**-keep, sums.largest()
        elif isinstance(residual, Codes) and residual.low == 0:
            found = residual.map, residual.step * unit, residual.top * residual.step * unit
        else:
            raise CExportError(f"{name} adds something that is not a map of codes; {ELSE}")
        m = found[0]
        if (m.height, m.width, m.channels) != (target.height, target.width, target.channels):
            raise CExportError(f"{name} adds maps of different shapes; {ELSE}")
        return found

    def _emit(
        self, sums: Sums, target: Map, top: int, keep: int = 0, added: tuple[Map, float, float] | None = None
    ) -> None:
        most = sums.largest_sums()
        if float(most.max()) >= 2**31:
            raise CExportError(f"the sums of {sums.name} do not fit 32 bits; {ELSE}")
        extra = 0.0 if added is None else added[2]
        rescale = _rescale(sums.name, sums.factor, sums.summand, most, extra, keep)
        layer = sums.layer
        stride, padding = (layer.stride, layer.padding) if isinstance(layer, LowBitConv2d) else ((1, 1), (0, 0))
        residual = (None, 0) if added is None else (added[0], round(added[1] * 2.0**rescale.shift))
        shape = layer.weight.bits, stride, padding
        self.operations.append(
            Convolution(sums.name, sums.source.map, target, sums.ordered(), *shape, rescale, top, *residual)
        )

    def maximum(self, name: str, source: Value, window: Pair, stride: Pair, padding: Pair) -> View:
        """Max pooling: the largest code is the code of the largest value."""
        if not isinstance(source, View) or source.averaged:
            raise CExportError(f"{name} does not pool a map of codes; {ELSE}")
        m = source.source.map
        sides = zip((m.height, m.width), window, stride, padding, strict=True)
        height, width = (output_side(*side) for side in sides)
        target = Map(height, width, m.channels)
        self.operations.append(Maximum(name, m, target, window, stride, padding))
        return View(replace(source.source, map=target))

    def rounded(self, name: str, codes: RangeCodes, source: Value) -> Codes:
        """Averages, or codes of another grid, as codes; nothing is to be done if the grid is the same."""
        if isinstance(source, (Codes, Sums)):
            raise CExportError(f"{name} does not round a view of codes; {ELSE}")
        views, divisor = (source.views, source.divisor) if isinstance(source, Flat) else ((source,), 1.0)
        low, high, top = float(codes.low), float(codes.high), 2**codes.bits - 1
        step = (high - low) / top if high > low else 1.0
        order = torch_order([view.map for view in views]) if isinstance(source, Flat) else None
        first = views[0]
        if len(views) == 1 and divisor == 1 and not first.averaged and first.source.on_grid(step, low, top):
            return Codes(first.source.map, step, top, low, order)
        target = first.map if order is None else Map(1, 1, sum(view.map.size for view in views))
        self._averages(name, views, divisor, Codes(target, step, top, low))
        return Codes(target, step, top, low, order)

    def _averages(self, name: str, views: Sequence[View], divisor: float, grid: Codes) -> None:
        at = 0
        for view in views:
            source, area = view.source, view.window[0] * view.window[1]
            values = np.arange(source.top + 1, dtype=np.float32) * np.float32(source.step) + np.float32(source.low)
            shape = at, view.window, view.stride, values, TORCH_GROUP if view.grouped else area
            self.operations.append(
                Average(name, source.map, grid.map, *shape, divisor, grid.low, 1.0 / grid.step, grid.top)
            )
            at += view.map.size

    def scores(self, source: Value) -> tuple[Map, int]:
        """The last layer's sums as logits in fixed point, and their fractional bits."""
        if not isinstance(source, Sums):
            raise CExportError(f"the model does not end in a low-bit linear layer; {ELSE}")
        keep, target = _fraction_bits(source), source.target("wide")
        self._emit(source, target, 0, keep=keep)
        return target, keep


def _fraction_bits(sums: Sums) -> int:
    try:
        return fixed_point.fraction_bits(sums.largest())
    except ValueError as error:
        raise CExportError(f"{sums.name} cannot be exported: {error}") from error


def _rescale(
    name: str, factor: ArrayLike, summand: ArrayLike, most: ArrayLike, extra: float = 0.0, keep: int = 0
) -> Rescale:
    try:
        return fixed_point.rescale(factor, summand, most, extra, keep)
    except ValueError as error:
        raise CExportError(f"{name} cannot be exported: {error}") from error


__all__ = ["ELSE", "PIXEL_TOP", "CExportError", "Lowering"]
