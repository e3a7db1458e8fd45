"""Inputs of every kernel with the outputs of the reference, for ``tests/quant/test_variants.py`` and ``tests/arm``.

What the reference adds up in another order (batch norm's sums, in floats) is taken from the kernels of this machine, whose
closeness to the reference other tests check.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from ctypes import byref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fedqssl import library
from fedqssl.quant.kernels import reference
from fedqssl.quant.kernels.types import Norm, NormAct, extra_bits


class Case(NamedTuple):
    """One call of a kernel: numbers, inputs and what must come out; a None is a null pointer."""

    name: str
    integers: Sequence[int]
    floats: Sequence[float]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


def _bytes(x: Any) -> bytes:
    return b"" if x is None else np.ascontiguousarray(x.numpy() if isinstance(x, torch.Tensor) else x).tobytes()


def write(path: Path, cases: Sequence[Case]) -> None:
    """The file that the driver reads."""

    def listed(parts: Sequence[bytes]) -> bytes:
        return struct.pack("<Q", len(parts)) + b"".join(parts)

    def buffers(arrays: Sequence[Any]) -> bytes:
        return listed([struct.pack("<Q", len(b)) + b for b in map(_bytes, arrays)])

    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(cases)))
        for case in cases:
            file.write(listed([bytes([c]) for c in case.name.encode()]))
            file.write(listed([struct.pack("<q", i) for i in case.integers]))
            file.write(listed([struct.pack("<d", f) for f in case.floats]))
            file.write(buffers(case.inputs) + buffers(case.outputs))


def expected(case: Case) -> list[bytes]:
    """What must come out."""
    return [_bytes(x) for x in case.outputs]


def packing(g: torch.Generator, bits: int, n: int) -> Iterator[Case]:
    """Codes to bits, bits to codes, floats to bits and back."""
    codes = torch.randint(0, 2**bits, (n,), generator=g).to(reference.code_dtype(bits))
    packed = reference.pack(codes, bits)
    yield Case("pack", [n, bits], [], [codes], [packed])
    yield Case("unpack", [n, bits], [], [packed], [codes])
    x = torch.rand(n, generator=g) * 1.2 - 0.1
    mul = float(np.float32(2**bits - 1))
    x[: n // 4] = ((x[: n // 4] * mul).floor() + 0.5) / mul  # as many ties as floats allow
    if n > 8:
        x[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    yield Case("quantize_pack", [n, bits], [mul], [x], [reference.quantize_pack(x, bits, mul)])
    yield Case(
        "unpack_affine", [n, bits], [0.123, -4.56], [packed], [reference.unpack_affine(packed, bits, n, 0.123, -4.56)]
    )
    table = torch.randn(2**bits, generator=g)
    yield Case("unpack_table", [n, bits], [], [packed, table], [reference.unpack_table(packed, bits, n, table)])


TABLES = ("quantile_table", "mean_table")


def quantiles(g: torch.Generator, bits: int, n: int) -> Iterator[Case]:
    """Histogram, table and look-ups of the quantile quantizer."""
    x = torch.randn(n, generator=g) ** 3
    hist, low, high = reference.key_histogram(x)
    counts = hist.to(torch.int32)
    yield Case("key_histogram", [n, 0], [], [x], [counts, np.float32([low, high])])
    table, extra = reference.quantile_table(hist, n, bits, low, high), extra_bits(bits)
    assert table is not None
    codes = table.codes.to(torch.int32).to(torch.uint16)
    yield Case("quantile_table", [n, bits, extra], [low, high], [counts], [table.centres, table.values, codes])
    means = reference.mean_table(hist, n, bits, low, high)
    assert means is not None
    mean_codes = means.codes.to(torch.int32).to(torch.uint16)
    yield Case("mean_table", [n, bits, extra], [low, high], [counts], [means.centres, means.values, mean_codes])
    yield Case("table_apply", [n, extra], [], [x, table.values], [reference.table_apply(x, table)])
    yield Case("code_apply", [n, extra], [], [x, codes], [reference.code_apply(x, table)])


def norms(g: torch.Generator, rows: int, channels: int, bits: int, residual: str) -> Iterator[Case]:
    """Batch norm with what follows it, forward and backward."""
    functions = _this_machine()
    y = torch.randn(rows, channels, generator=g)
    sums = np.zeros((2, channels))
    functions["norm_stats"](y.data_ptr(), rows, channels, sums[0].ctypes.data, sums[1].ctypes.data, 1)
    yield Case("norm_stats", [rows, channels], [], [y], list(sums))
    c = [torch.rand(channels, generator=g) + 0.5 for _ in range(4)]
    codes = torch.randint(0, 2 ** min(bits, 8), y.shape, generator=g).to(torch.uint8) if residual == "codes" else None
    values = torch.randn(y.shape, generator=g) if residual == "values" else None
    hat_bits, hat_step, top = min(max(bits - 1, 2), 8), 0.31, 2**bits - 1
    act = NormAct(bits, top / 4.0, 4.0 / top, hat_bits, hat_step, True, bits <= 8, True, codes, values, 0.07)
    want = reference.norm_act(y, Norm(*c), act)
    numbers = [act.residual_step, act.scale, act.step, hat_step]
    outputs = [want.codes, want.packed, want.mask, want.hat, want.values]
    yield Case("norm_act", [rows, channels, bits, hat_bits], numbers, [y, *c, codes, values], outputs)
    sums = np.zeros((2, channels))
    grad, masked = torch.randn(rows, channels, generator=g), np.zeros((rows, channels), np.float32)
    assert want.mask is not None and want.hat is not None
    shared = grad.data_ptr(), rows, channels, want.mask.data_ptr(), want.hat.data_ptr(), hat_bits, hat_step
    functions["norm_backward_sums"](*shared, masked.ctypes.data, sums[0].ctypes.data, sums[1].ctypes.data, 1)
    yield Case(
        "norm_backward_sums", [rows, channels, hat_bits], [hat_step], [grad, want.mask, want.hat], [masked, *sums]
    )
    dx, hist, extent = np.zeros_like(masked), np.zeros(1 << 16, np.uint32), np.zeros(2, np.float32)
    pointers = [t.data_ptr() for t in c[:3]]
    functions["norm_backward_apply"](*shared, *pointers, dx.ctypes.data, hist.ctypes.data, extent.ctypes.data, 1)
    inputs = [grad, want.mask, want.hat, *c[:3]]
    yield Case("norm_backward_apply", [rows, channels, hat_bits], [hat_step], inputs, [dx, hist, extent])


def steps(g: torch.Generator, bits: int, n: int, stochastic: bool) -> Iterator[Case]:
    """The weight update."""
    gradient_bits = min(bits + 2, 16)
    packed = reference.pack(torch.randint(0, 2**bits, (n,), generator=g), bits)
    moves = reference.pack(torch.randint(0, 2**gradient_bits, (n,), generator=g), gradient_bits)
    table = torch.linspace(-1, 1, 2**bits, dtype=torch.float64)
    centres = torch.randn(2**gradient_bits, generator=g)
    want = reference.step_target(packed, bits, n, table, moves, gradient_bits, centres, 0.01)
    yield Case("step_target", [n, bits, gradient_bits], [0.01], [packed, table, moves, centres], [want])
    uniform, y = torch.rand(n, generator=g, dtype=torch.float64) if stochastic else None, want.clone()
    if n > 3:
        y[:3] = torch.tensor([float("nan"), 2.0, -2.0])
    y[3 : n // 2] = table[(y[3 : n // 2].abs() * 1e6).long() % 2**bits]  # on the grid
    yield Case("round_pack", [n, bits], [1.0, 1e-9], [y, uniform], [reference.round_pack(y, bits, 1.0, 1e-9, uniform)])


def odd_sums(g: torch.Generator, rows: int, channels: int) -> Iterator[Case]:
    """What an integer convolution of 8 bits leaves: with one column for all channels, and with one for each."""
    for width, factor in ((channels + 1, 2.0), (2 * channels, 4.0)):
        parts = torch.randint(-(2**24), 2**24, (rows, width), generator=g).float()
        want = reference.odd_sums(parts, factor, 0.3, torch.empty(rows, channels))
        yield Case("odd_sums", [rows, width, channels], [factor, 0.3], [parts], [want])


class Shape(NamedTuple):
    """Of a convolution: images, side, channels, outputs, kernel, stride, padding."""

    n: int
    side: int
    c: int
    o: int
    k: int
    stride: int
    pad: int


def convolutions(g: torch.Generator, shape: Shape, bits: int, kinds: str = "bits integers floats") -> Iterator[Case]:
    """The same sums by bit counts, in integers, and (of small numbers) in floats."""
    n, side, c, o, k, stride, pad = shape
    x = torch.randint(0, 2**bits, (n, c, side, side), generator=g)
    w = torch.randint(0, 2**bits, (o, c, k, k), generator=g)
    x[0], w[0] = 2**bits - 1, 2**bits - 1
    exact = F.conv2d(x.double(), 2 * w.double() - (2**bits - 1), None, stride, pad)
    want = (exact.float() * np.float32(0.37)).permute(0, 2, 3, 1)
    rows = x.permute(0, 2, 3, 1).to(torch.uint8)
    sizes = [n, side, side, c, o, k, k, *want.shape[1:3], stride, stride, pad, pad]
    if "bits" in kinds:
        inputs = [rows, w.permute(0, 2, 3, 1).to(torch.uint8)]
        yield Case("bit_conv2d", [*sizes, 1, 1, bits, bits], [0.37], inputs, [want])
        a, b = x.flatten()[: c * k], w.flatten()[: c * k]
        yield Case("bit_dot", [len(a), bits, bits], [], [a.to(torch.uint8), b.to(torch.uint8)], [(a * b).sum().view(1)])
    if "integers" in kinds:
        yield Case("conv2d", [*sizes, bits], [0.37], [rows, w.to(torch.uint8)], [want])
    if "floats" in kinds and bits < 8:  # sums below 2^24, exact in any order
        inputs = [rows.float(), (2 * w - (2**bits - 1)).float()]
        yield Case("conv2d", [*sizes, 0], [0.37], inputs, [want])


def _this_machine() -> dict[str, Any]:
    found, reason = library.load()
    assert found is not None, reason
    return found.functions


def call(functions: dict[str, Any], case: Case) -> list[Any]:
    """The outputs of a kernel for a case: what the driver does, through ctypes."""
    inputs = [None if x is None else np.frombuffer(_bytes(x), np.uint8) for x in case.inputs]
    outputs = [None if x is None else np.full(len(_bytes(x)), 0xA5, np.uint8) for x in case.outputs]
    if case.name in TABLES:  # leave entries alone that do not occur
        outputs = [np.frombuffer(_bytes(x), np.uint8).copy() for x in case.outputs]
    i, f, name = list(case.integers), list(case.floats), case.name
    given, made = ([None if x is None else x.ctypes.data for x in arrays] for arrays in (inputs, outputs))
    if name == "bit_dot":
        return [np.array([functions[name](*given, *i)]).tobytes()]
    if name == "norm_act":
        numbers = f[0], i[2], f[1], f[2], i[3], f[3]
        arguments: Any = [byref(library.NormActArgs(given[0], *i[:2], *given[1:], *numbers, *made, 1))]
    elif name == "bit_conv2d":
        arguments = [byref(library.BitConvArgs(*given, *made, *i, *f, 1))]
    elif name == "conv2d":
        taps, bits = i[5] * i[6], i[13]
        factors = np.empty(functions["conv_bytes"](i[4], i[3] * taps, bits), np.uint8)
        functions["conv_prepare"](given[1], i[4], i[3], taps, bits, factors.ctypes.data)
        arguments = [byref(library.ConvArgs(given[0], factors.ctypes.data, *made, *i, *f, 1))]
    elif name == "step_target":
        arguments = [given[0], *i[:2], *given[1:3], i[2], given[3], *f, *made, 1]
    elif name == "round_pack":
        arguments = [given[0], *i, *f, given[1], *made, 1]
    elif name.startswith("norm_backward"):
        arguments = [given[0], *i[:2], *given[1:3], i[2], *f, *given[3:], *made, 1]
    elif name in TABLES:
        arguments = [*given, *i, *f, *made]
    elif name in ("key_histogram", "norm_stats"):
        arguments = [*given, *(i if name == "norm_stats" else i[:1]), *made, 1]
    else:
        arguments = [given[0], *i, *f, *given[1:], *made, 1]
    functions[name](*arguments)
    return [b"" if x is None else x.tobytes() for x in outputs]


def small() -> list[Case]:
    """Every kernel at many widths and odd sizes."""
    g, found = torch.Generator().manual_seed(0), []
    for bits in range(1, 17):
        for n in (1, 7, 8, 23, 1024, 1531):
            found += packing(g, bits, n)
            found += steps(g, bits, n, stochastic=bits % 2 == 0)
    for bits in (2, 6, 7, 12):
        found += quantiles(g, bits, 3001)
    for bits, channels, residual in (
        (2, 16, ""),
        (4, 24, "codes"),
        (8, 5, "codes"),
        (8, 32, "values"),
        (12, 8, "values"),
    ):
        found += norms(g, 70, channels, bits, residual)
        found += odd_sums(g, 70, channels + bits)
    shapes = (
        Shape(2, 7, 3, 5, 3, 1, 1),
        Shape(1, 8, 16, 24, 3, 2, 1),
        Shape(3, 4, 40, 9, 1, 2, 0),
        Shape(5, 1, 33, 17, 1, 1, 0),
    )
    for shape in (*shapes, Shape(1, 5, 70, 16, 3, 1, 1)):
        for bits in (1, 2, 4, 7, 8):
            found += convolutions(g, shape, bits)
    return found


def large() -> list[Case]:
    """One call of each kernel, of a size at which instructions can be counted: what a layer of `small_cnn` takes."""
    g, found = torch.Generator().manual_seed(1), []
    found += packing(g, 4, 1 << 16)
    found += quantiles(g, 6, 1 << 16)
    found += norms(g, 4096, 16, 4, "codes")
    found += odd_sums(g, 4096, 16)
    found += steps(g, 4, 1 << 16, stochastic=True)
    found += convolutions(g, Shape(1, 16, 32, 32, 3, 1, 1), 2, "bits")
    found += convolutions(g, Shape(1, 16, 32, 32, 3, 1, 1), 4, "integers")
    return found


__all__ = ["Case", "Shape", "call", "expected", "large", "small", "write"]
