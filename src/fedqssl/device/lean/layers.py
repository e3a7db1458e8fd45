"""The layers of a low-bit network on numpy arrays, computed by the compiled kernels.

Activations are (N, H, W, C). The arithmetic is that of :mod:`fedqssl.lowbit.layers`, in the same order: up to 8 bits, codes are
convolved in integers; above that, and for weights without a uniform grid, floats.
"""

from __future__ import annotations

import os
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedqssl import library
from fedqssl.device.framing import DeviceFileError
from fedqssl.device.lean.tensors import Array, Container

MOST_INPUTS = 33_000
"""Inputs of an output whose products of 8-bit codes, 255 x 255 each, add up to less than 2^31."""


def threads() -> int:
    """As many as ``OMP_NUM_THREADS`` says, else one for each CPU that this process may use."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Activation:
    """Codes (uint8) that stand for ``code * step``, or, above 8 bits, the values themselves."""

    codes: Array | None
    values: Array | None
    step: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, C)."""
        found = self.codes if self.codes is not None else self.values
        assert found is not None
        return tuple(found.shape)

    def floats(self) -> Array:
        """What the codes stand for."""
        if self.values is not None:
            return self.values
        assert self.codes is not None
        return self.codes.astype(np.float32) * np.float32(self.step)


class Kernels:
    """The compiled kernels for this process."""

    def __init__(self) -> None:
        found, reason = library.load()
        if found is None:
            raise DeviceFileError(f"without torch the compiled kernels are needed, but: {reason}")
        self.variant, self._functions, self.threads = found.variant, found.functions, threads()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a kernel; arrays must be contiguous."""
        return self._functions[name](*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))

    def unpacked(self, packed: Array, bits: int, n: int) -> Array:
        """Codes from their bits."""
        codes = np.empty(n, np.uint8 if bits <= 8 else np.uint16)
        self.call("unpack", packed, n, bits, codes, self.threads)
        return codes


class Weight:
    """Packed codes with a scale, and how to compute with them; ``absorbed``: a batch norm behind absorbs the scale."""

    def __init__(
        self, container: Container, name: str, shape: tuple[int, ...], absorbed: bool, kernels: Kernels
    ) -> None:
        self.packed, m = container.codes(name, shape)
        self.shape, self.bits, self.kernels = shape, container.bits, kernels
        self.kept: tuple[bool, Array] | None = None
        self.keep = False
        top, self.reading = 2**self.bits - 1, container.options.get("weights", "level")
        self.factor = 1.0 / top if absorbed and m > 0 else m / top
        odd = np.arange(-top, top + 1, 2, dtype=np.float64) / top
        if self.reading == "value":
            inverse = np.arctanh if container.options.get("compander") == "tanh" else np.asarray
            self.table = inverse(m * odd).astype(np.float32)
        else:
            self.table = (odd if absorbed and m > 0 else odd * m).astype(np.float32)

    def floats(self) -> Array:
        """What the layer computes with."""
        codes = self.kernels.unpacked(self.packed, self.bits, int(np.prod(self.shape)))
        return self.table[codes].reshape(self.shape)

    def in_integers(self, x: Activation) -> bool:
        """Whether this weight and these codes can be convolved in integers, exactly."""
        return x.codes is not None and self.bits <= 8 and self.reading != "value" and self.inputs <= MOST_INPUTS

    @property
    def inputs(self) -> int:
        """Inputs of one output."""
        return int(np.prod(self.shape[1:]))

    def factors(self, integers: bool) -> Array:
        """In the order in which the kernel reads them; kept between calls if ``keep`` is set."""
        if self.kept is not None and self.kept[0] is integers:
            return self.kept[1]
        bits = self.bits if integers else 0
        outputs, channels = self.shape[:2]
        taps = self.inputs // channels
        source = self.kernels.unpacked(self.packed, self.bits, outputs * self.inputs) if integers else self.floats()
        made = np.empty(self.kernels.call("conv_bytes", outputs, self.inputs, bits), np.uint8)
        self.kernels.call("conv_prepare", np.ascontiguousarray(source), outputs, channels, taps, bits, made)
        if self.keep:
            self.kept = integers, made
        return made


def _convolved(w: Weight, x: Array, stride: int, integers: bool, scale: float) -> Array:
    """Codes or floats (N, H, W, C) to floats (N, H', W', O), for a square kernel that keeps the size but for the stride."""
    k = w.shape[2] if len(w.shape) == 4 else 1
    n, height, width, channels = x.shape
    outputs, pad = w.shape[0], k // 2
    out_h, out_w = ((side + 2 * pad - k) // stride + 1 for side in (height, width))
    out, factors = np.empty((n, out_h, out_w, outputs), np.float32), w.factors(integers)
    pointers = (a.ctypes.data for a in (x, factors, out))
    sizes = n, height, width, channels, outputs, k, k, out_h, out_w, stride, stride, pad, pad
    arguments = library.ConvArgs(*pointers, *sizes, w.bits if integers else 0, scale, w.kernels.threads)
    w.kernels.call("conv2d", byref(arguments))
    return out


class Conv:
    """A square convolution without bias."""

    def __init__(self, weight: Weight, stride: int) -> None:
        self.weight, self.stride = weight, stride

    def __call__(self, x: Activation) -> Array:
        """Codes (N, H, W, C) to floats (N, H', W', O)."""
        if self.weight.in_integers(x):
            assert x.codes is not None
            return _convolved(self.weight, x.codes, self.stride, True, self.weight.factor * x.step)
        return _convolved(self.weight, x.floats(), self.stride, False, 1.0)


class Norm:
    """Batch norm with its running statistics, then residual add and clipped ReLU, in one pass."""

    def __init__(self, container: Container, name: str, channels: int, activate: bool, kernels: Kernels) -> None:
        of = {
            part: container.floats(f"{name}.{part}", (channels,))
            for part in ("bias", "running_mean", "running_var", "weight")
        }
        inverse = 1.0 / np.sqrt(of["running_var"].astype(np.float64) + 1e-5)
        shift = -of["running_mean"].astype(np.float64) * inverse
        self.coefficients = inverse.astype(np.float32), shift.astype(np.float32), of["weight"], of["bias"]
        self.bits = container.bits if activate else 0
        self.clip, self.kernels = float(container.options.get("activation_clip", 4.0)), kernels

    def __call__(self, y: Array, residual: Activation | None = None) -> Activation:
        """Floats (N, H, W, C) to codes; to floats if no activation follows."""
        top = 2**self.bits - 1
        step = self.clip / top if self.bits else 0.0
        coded = 0 < self.bits <= 8
        codes = np.empty(y.shape, np.uint8) if coded else None
        values = None if coded else np.empty(y.shape, np.float32)
        added = (None, None, 0.0) if residual is None else (residual.codes, residual.values, residual.step)
        rows, channels = y.size // y.shape[-1], y.shape[-1]
        arguments = library.NormActArgs(
            y.ctypes.data,
            rows,
            channels,
            *(c.ctypes.data for c in self.coefficients),
            *(None if a is None else a.ctypes.data for a in added[:2]),
            added[2],
            self.bits,
            top / self.clip,
            step,
            0,
            1.0,
            None if codes is None else codes.ctypes.data,
            None,
            None,
            None,
            None if values is None else values.ctypes.data,
            self.kernels.threads,
        )
        self.kernels.call("norm_act", byref(arguments))
        return Activation(codes, values, step)


class Linear:
    """A linear layer on features, which are coded on the grid of their range first."""

    def __init__(self, container: Container, name: str, shape: tuple[int, int], kernels: Kernels) -> None:
        grid = container.range_name()
        self.low, self.high = (float(container.floats(f"{grid}.{end}", ())) for end in ("low", "high"))
        self.weight = Weight(container, f"{name}.weight", shape, False, kernels)
        self.bias = container.floats(f"{name}.bias", shape[:1])

    def __call__(self, x: Array) -> Array:
        """Features (N, d) to logits (N, classes)."""
        top = 2**self.weight.bits - 1
        step = (self.high - self.low) / top if self.high > self.low else 1.0
        levels = (x - np.float32(self.low) if self.low else x) * np.float32(1.0 / step)
        codes = np.rint(np.clip(np.nan_to_num(levels), 0, top))
        values = codes * np.float32(step) + np.float32(self.low)
        out = _convolved(self.weight, np.ascontiguousarray(values)[:, None, None], 1, False, 1.0)
        return out[:, 0, 0] + self.bias


__all__ = ["Activation", "Conv", "Kernels", "Linear", "Norm", "Weight"]
