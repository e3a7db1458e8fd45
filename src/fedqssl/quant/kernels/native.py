"""The compiled CPU kernels, through ctypes. Same functions and results as :mod:`.reference`, for CPU tensors.

torch is imported first on purpose: the library then shares torch's OpenMP runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedqssl import library
from fedqssl.quant.kernels.reference import code_dtype
from fedqssl.quant.kernels.types import (
    Coefficients,
    GradientCentres,
    Hat,
    KeyTable,
    Norm,
    NormAct,
    NormActResult,
    extra_bits,
)

NAME = "native"
_KEYS = 1 << 16


_LIBRARY, REASON = library.load()


@contextmanager
def use_variant(variant: str) -> Iterator[None]:
    """Compute with another variant that this CPU runs, for a block of code: for tests and comparisons."""
    global _LIBRARY, REASON
    found, reason = library.load(variant)
    if found is None:
        raise ValueError(f"the kernels {variant!r} cannot be used: {reason}")
    before = _LIBRARY, REASON
    _LIBRARY, REASON = found, reason
    try:
        yield
    finally:
        _LIBRARY, REASON = before


def variants() -> tuple[str, ...]:
    """What this CPU runs, best first; empty without compiled kernels."""
    return () if _LIBRARY is None else _LIBRARY.variants


def available() -> bool:
    """Whether the compiled kernels are built and this CPU runs them; ``REASON`` says why not."""
    return _LIBRARY is not None


def _call(name: str, *arguments: Any) -> Any:
    assert _LIBRARY is not None
    return _LIBRARY.functions[name](*arguments)


def _ptr(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _threads() -> int:
    return torch.get_num_threads()


def _floats(n: int) -> Tensor:
    return torch.empty(n, dtype=torch.float32)


def pack(codes: Tensor, bits: int) -> Tensor:
    """See :func:`.reference.pack`."""
    codes = codes.to(code_dtype(bits)).contiguous()
    out = torch.empty((codes.numel() * bits + 7) // 8, dtype=torch.uint8)
    _call("pack", codes.data_ptr(), codes.numel(), bits, out.data_ptr(), _threads())
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """See :func:`.reference.unpack`."""
    out = torch.empty(n, dtype=code_dtype(bits))
    _call("unpack", packed.data_ptr(), n, bits, out.data_ptr(), _threads())
    return out


def quantize_pack(x: Tensor, bits: int, mul: float) -> Tensor:
    """See :func:`.reference.quantize_pack`."""
    out = torch.empty((x.numel() * bits + 7) // 8, dtype=torch.uint8)
    _call("quantize_pack", x.data_ptr(), x.numel(), bits, mul, out.data_ptr(), _threads())
    return out


def unpack_affine(packed: Tensor, bits: int, n: int, mul: float, add: float, out: Tensor | None = None) -> Tensor:
    """See :func:`.reference.unpack_affine`."""
    out = _floats(n) if out is None else out
    _call("unpack_affine", packed.data_ptr(), n, bits, mul, add, out.data_ptr(), _threads())
    return out


def unpack_table(packed: Tensor, bits: int, n: int, table: Tensor) -> Tensor:
    """See :func:`.reference.unpack_table`."""
    out = _floats(n)
    table = table.contiguous()
    _call("unpack_table", packed.data_ptr(), n, bits, table.data_ptr(), out.data_ptr(), _threads())
    return out


def key_histogram(x: Tensor) -> tuple[Tensor, float, float]:
    """See :func:`.reference.key_histogram`."""
    hist, extent = torch.empty(_KEYS, dtype=torch.int32), _floats(2)
    _call("key_histogram", x.data_ptr(), x.numel(), hist.data_ptr(), extent.data_ptr(), _threads())
    return hist, float(extent[0]), float(extent[1])


def quantile_table(hist: Tensor, n: int, bits: int, low: float, high: float) -> KeyTable | None:
    """See :func:`.reference.quantile_table`; entries that do not occur are left undefined."""
    return _table("quantile_table", hist, n, bits, low, high)


def mean_table(hist: Tensor, n: int, bits: int, low: float, high: float) -> KeyTable | None:
    """See :func:`.reference.mean_table`; entries that do not occur are left undefined."""
    return _table("mean_table", hist, n, bits, low, high)


TABLES = {"quantile": quantile_table, "mean": mean_table}


def _table(kernel: str, hist: Tensor, n: int, bits: int, low: float, high: float) -> KeyTable | None:
    extra = extra_bits(bits)
    centres, values = _floats(2**bits), _floats(_KEYS << extra)
    codes = torch.empty(_KEYS << extra, dtype=torch.uint16)
    pointers = centres.data_ptr(), values.data_ptr(), codes.data_ptr()
    bad = _call(kernel, hist.data_ptr(), n, bits, extra, low, high, *pointers)
    return None if bad else KeyTable(centres, values, codes, extra)


def table_apply(x: Tensor, table: KeyTable, out: Tensor | None = None) -> Tensor:
    """See :func:`.reference.table_apply`; ``out`` may be x."""
    out = torch.empty_like(x) if out is None else out
    pointers = table.values.data_ptr(), out.data_ptr()
    _call("table_apply", x.data_ptr(), x.numel(), table.extra, *pointers, _threads())
    return out


def code_apply(x: Tensor, table: KeyTable) -> Tensor:
    """See :func:`.reference.code_apply`."""
    out = torch.empty(x.numel(), dtype=torch.uint16)
    _call("code_apply", x.data_ptr(), x.numel(), table.extra, table.codes.data_ptr(), out.data_ptr(), _threads())
    return out


def norm_stats(y: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`.reference.norm_stats`."""
    rows, channels = y.shape
    sums, squares = torch.empty(channels, dtype=torch.float64), torch.empty(channels, dtype=torch.float64)
    _call("norm_stats", y.data_ptr(), rows, channels, sums.data_ptr(), squares.data_ptr(), _threads())
    mean = sums / rows
    return mean + y[0].double(), (squares / rows - mean.square()).clamp_(min=0)


def _values_buffer(y: Tensor, act: NormAct) -> Tensor:
    return torch.empty_like(y) if act.values_out is None else act.values_out


def norm_act(y: Tensor, norm: Norm, act: NormAct) -> NormActResult:
    """See :func:`.reference.norm_act`."""
    rows, channels = y.shape
    n = y.numel()

    def packed(bits: int, wanted: bool) -> Tensor | None:
        return torch.empty((n * bits + 7) // 8, dtype=torch.uint8) if wanted and bits else None

    coded = act.bits > 0
    codes = torch.empty(y.shape, dtype=torch.uint8) if act.want_codes and coded else None
    bytes_ = codes.view(-1) if codes is not None and act.bits == 8 else None  # are the packed codes, too
    result = NormActResult(
        values=_values_buffer(y, act) if act.want_values or not coded else None,
        codes=codes,
        packed=packed(act.bits, act.save) if bytes_ is None else bytes_ if act.save else None,
        mask=packed(1, act.save and coded),
        hat=packed(act.hat_bits, act.save),
    )
    coefficients = [norm.hat_mul, norm.hat_add, norm.mul, norm.add]
    arguments = library.NormActArgs(
        y.data_ptr(),
        rows,
        channels,
        *(c.data_ptr() for c in coefficients),
        _ptr(act.residual_codes),
        _ptr(act.residual_values),
        act.residual_step,
        act.bits,
        act.scale,
        act.step,
        act.hat_bits if act.save else 0,
        act.hat_step,
        *map(_ptr, (codes, result.packed if bytes_ is None else None, result.mask, result.hat, result.values)),
        _threads(),
    )
    _call("norm_act", ctypes.byref(arguments))
    return result


def norm_backward_sums(g: Tensor, mask: Tensor | None, hat: Hat, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """See :func:`.reference.norm_backward_sums`."""
    rows, channels = g.shape
    sums = torch.empty(2, channels, dtype=torch.float64)
    kept = hat[1:] if hat.packed is not None else (0, 0.0)
    pointers = g.data_ptr(), rows, channels, _ptr(mask), _ptr(hat.packed)
    _call("norm_backward_sums", *pointers, *kept, _ptr(out), *map(_ptr, sums), _threads())
    return sums[0], sums[1]


def norm_backward_apply(
    g: Tensor,
    mask: Tensor | None,
    hat: Hat,
    coefficients: Coefficients,
    bits: int | None,
    out: Tensor,
    centres: GradientCentres = "quantile",
) -> bool:
    """See :func:`.reference.norm_backward_apply`."""
    rows, channels = g.shape
    hist, extent = None, _floats(2)
    if bits is not None:
        hist = torch.empty(_KEYS, dtype=torch.int32)
    kept = hat[1:] if hat.packed is not None else (0, 0.0)
    pointers = g.data_ptr(), rows, channels, _ptr(mask), _ptr(hat.packed)
    outputs = *map(_ptr, coefficients), out.data_ptr(), _ptr(hist), extent.data_ptr()
    _call("norm_backward_apply", *pointers, *kept, *outputs, _threads())
    if hist is None or bits is None:
        return bool(torch.isfinite(out).all())
    table = TABLES[centres](hist, out.numel(), bits, float(extent[0]), float(extent[1]))
    if table is not None:
        table_apply(out, table, out=out)
    return table is not None


def bit_dot(x: Tensor, y: Tensor, x_bits: int, y_bits: int) -> int:
    """``sum_i x_i y_i`` by AND and bit count over bit planes (Sec. 1.1)."""
    return int(_call("bit_dot", x.data_ptr(), y.data_ptr(), x.numel(), x_bits, y_bits))


def bit_conv2d(x: Tensor, w: Tensor, out: Tensor, steps: tuple[int, ...], bits: tuple[int, int], scale: float) -> None:
    """Bit convolution of (N, H, W, C) codes with (O, KH, KW, C) codes into (N, OH, OW, O) floats."""
    sizes = *x.shape, *w.shape[:3], *out.shape[1:3]
    arguments = library.BitConvArgs(
        x.data_ptr(), w.data_ptr(), out.data_ptr(), *sizes, *steps, *bits, scale, _threads()
    )
    _call("bit_conv2d", ctypes.byref(arguments))


def step_target(
    packed: Tensor, bits: int, n: int, table: Tensor, gradient: Tensor, gradient_bits: int, centres: Tensor, rate: float
) -> Tensor:
    """See :func:`.reference.step_target`."""
    table, centres = table.contiguous(), centres.contiguous()
    out = torch.empty(n, dtype=torch.float64)
    weight = packed.data_ptr(), n, bits, table.data_ptr()
    moves = gradient.data_ptr(), gradient_bits, centres.data_ptr(), rate
    _call("step_target", *weight, *moves, out.data_ptr(), _threads())
    return out


def round_pack(y: Tensor, bits: int, scale: float, snap: float, uniform: Tensor | None) -> Tensor:
    """See :func:`.reference.round_pack`."""
    y = y.contiguous()
    out = torch.empty((y.numel() * bits + 7) // 8, dtype=torch.uint8)
    pointers = _ptr(uniform), out.data_ptr()
    _call("round_pack", y.data_ptr(), y.numel(), bits, scale, snap, *pointers, _threads())
    return out


def odd_sums(parts: Tensor, factor: float, scale: float, out: Tensor) -> Tensor:
    """See :func:`.reference.odd_sums`."""
    sizes = *parts.shape, out.shape[1]
    _call("odd_sums", parts.data_ptr(), *sizes, factor, scale, out.data_ptr(), _threads())
    return out
