"""The kernels of GPUs, in Triton. Same functions and results as :mod:`.reference`, for tensors on one GPU.

Launched without fused multiply-add, so that results are those of separate operations, as on the CPU. With ``TRITON_INTERPRET=1``
they run on CPU tensors, slowly: that is how the tests compare them with the reference, bit for bit.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from fedqssl.quant.kernels import reference
from fedqssl.quant.kernels import triton_codes as codes_of
from fedqssl.quant.kernels import triton_norm as norms
from fedqssl.quant.kernels.reference import End, all_finite, code_dtype, extent, odd_sums
from fedqssl.quant.kernels.types import (
    GROUP,
    Coefficients,
    GradientCentres,
    Hat,
    KeyTable,
    Norm,
    NormAct,
    NormActResult,
    block_rows,
    extra_bits,
)

NAME = "triton"
_KEYS = 1 << 16
_BLOCK = 1024
"""Elements of a program; a program that packs has as many, in groups of eight."""
_GROUPS = _BLOCK // 8
_KEYS_BLOCK = 4096
"""Keys of a program that makes a table: a power of two, so that there are whole blocks of them."""
_BLOCKS, _COLUMNS = 16, 64
"""Blocks of rows and channels that a program adds up side by side; neither changes the sums."""
_MOST = 2**31 - 1
"""Elements that the histogram's 32-bit counters can count."""


def _launch(kernel: Any, like: Tensor, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the GPU of a tensor, which need not be the current one; nothing for an empty tensor."""
    if min(grid) > 0:
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def _blocks(n: int) -> tuple[int]:
    return (-(-n // _BLOCK),)


def _bytes(n: int, bits: int, like: Tensor) -> Tensor:
    return torch.empty((n * bits + 7) // 8, dtype=torch.uint8, device=like.device)


def _floats(n: int, like: Tensor) -> Tensor:
    return torch.empty(n, dtype=torch.float32, device=like.device)


def _pattern(value: float) -> int:
    """The bits of a float64 as a signed integer."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def pack(codes: Tensor, bits: int) -> Tensor:
    """See :func:`.reference.pack`."""
    codes = codes.to(code_dtype(bits)).contiguous()
    n, out = codes.numel(), _bytes(codes.numel(), bits, codes)
    # Triton has no 16-bit unsigned pointers from torch's uint16; the same bits as int16 are masked after loading.
    flat = codes if codes.dtype == torch.uint8 else codes.view(torch.int16)
    kernel = codes_of.pack_kernel
    _launch(kernel, codes, _blocks(n), flat, out, n, out.numel(), BITS=bits, GROUPS=_GROUPS)
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """See :func:`.reference.unpack`."""
    out = torch.empty(n, dtype=torch.uint8 if bits <= 8 else torch.int16, device=packed.device)
    kernel = codes_of.unpack_kernel
    _launch(kernel, packed, _blocks(n), packed.contiguous(), out, n, packed.numel(), BITS=bits, BLOCK=_BLOCK)
    return out if bits <= 8 else out.view(torch.uint16)


def quantize_pack(x: Tensor, bits: int, mul: float) -> Tensor:
    """See :func:`.reference.quantize_pack`."""
    x = x.contiguous()
    n, out = x.numel(), _bytes(x.numel(), bits, x)
    kernel = codes_of.quantize_pack_kernel
    _launch(kernel, x, _blocks(n), x, out, n, out.numel(), float(mul), BITS=bits, GROUPS=_GROUPS)
    return out


def unpack_affine(packed: Tensor, bits: int, n: int, mul: float, add: float, out: Tensor | None = None) -> Tensor:
    """See :func:`.reference.unpack_affine`."""
    out = _floats(n, packed) if out is None else out
    sizes = n, packed.numel(), float(mul), float(add)
    kernel = codes_of.unpack_affine_kernel
    _launch(kernel, packed, _blocks(n), packed.contiguous(), out, *sizes, BITS=bits, BLOCK=_BLOCK)
    return out


def unpack_table(packed: Tensor, bits: int, n: int, table: Tensor) -> Tensor:
    """See :func:`.reference.unpack_table`."""
    out = torch.empty(n, dtype=table.dtype, device=packed.device)
    tensors = packed.contiguous(), table.contiguous(), out
    kernel = codes_of.unpack_table_kernel
    _launch(kernel, packed, _blocks(n), *tensors, n, packed.numel(), BITS=bits, BLOCK=_BLOCK)
    return out


def key_histogram(x: Tensor) -> tuple[Tensor, End, End]:
    """See :func:`.reference.key_histogram`."""
    if x.numel() > _MOST:
        return reference.key_histogram(x)
    x = x.contiguous()
    counts = torch.zeros(_KEYS, dtype=torch.int32, device=x.device)
    _launch(codes_of.histogram_kernel, x, _blocks(x.numel()), x, counts, x.numel(), BLOCK=_BLOCK)
    return counts, *extent(x)


def quantile_table(hist: Tensor, n: int, bits: int, smallest: End, largest: End) -> KeyTable | None:
    """See :func:`.reference.quantile_table`."""
    ends = reference.end_tensors(hist, smallest, largest)
    if ends is None:
        return None
    centres, extra = reference.centres_of(*reference.ordered_keys(hist), n, bits, *ends), extra_bits(bits)
    values = _floats(_KEYS << extra, hist)
    codes = torch.empty(_KEYS << extra, dtype=torch.int32, device=hist.device)
    sizes = {"BITS": bits, "EXTRA": extra, "BLOCK": _KEYS_BLOCK}
    grid = ((_KEYS << extra) // _KEYS_BLOCK,)
    _launch(codes_of.table_kernel, hist, grid, centres, *ends, values, codes, **sizes)
    return KeyTable(centres, values, codes, extra)


mean_table = reference.mean_table
TABLES = {"quantile": quantile_table, "mean": mean_table}


def table_apply(x: Tensor, table: KeyTable, out: Tensor | None = None) -> Tensor:
    """See :func:`.reference.table_apply`; ``out`` may be x."""
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    sizes = {"EXTRA": table.extra, "BLOCK": _BLOCK}
    _launch(codes_of.look_up_kernel, x, _blocks(x.numel()), x, table.values, out, x.numel(), **sizes)
    return out


def code_apply(x: Tensor, table: KeyTable) -> Tensor:
    """See :func:`.reference.code_apply`."""
    x = x.contiguous()
    out = torch.empty(x.numel(), dtype=torch.int16, device=x.device)
    sizes = {"EXTRA": table.extra, "BLOCK": _BLOCK}
    _launch(codes_of.look_up_kernel, x, _blocks(x.numel()), x, table.codes, out, x.numel(), **sizes)
    return out.view(torch.uint16)


def _column_sums(g: Tensor, *arguments: Any, **flags: Any) -> Tensor:
    """Both sums of ``block_sums_kernel`` over all rows of a (rows, channels) matrix, in float64: (2, channels)."""
    rows, channels = g.shape
    step = block_rows(channels)
    tiles, blocks = -(-channels // _COLUMNS), -(-rows // step)
    parts = torch.empty(2, blocks, channels, dtype=torch.float32, device=g.device)
    grid = -(-blocks // _BLOCKS), tiles
    sizes = {"BLOCKS": _BLOCKS, "COLUMNS": _COLUMNS}
    numbers = rows, channels, step, blocks
    _launch(norms.block_sums_kernel, g, grid, g, *arguments[:3], *parts, *numbers, *arguments[3:], **flags, **sizes)
    for group in (GROUP, max(-(-blocks // GROUP), 1)):
        count = parts.shape[1]
        groups = -(-count // group)
        sums = torch.empty(2, groups, channels, dtype=torch.float64, device=g.device)
        numbers = count, groups, group, channels
        _launch(norms.add_in_order_kernel, g, (groups, tiles, 2), parts, sums, *numbers, COLUMNS=_COLUMNS)
        parts = sums
    return parts[:, 0]


def norm_stats(y: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`.reference.norm_stats`."""
    y = y.contiguous()
    flags = {"STATS": True, "MASKED": False, "HAT_BITS": 0, "KEEP": False}
    mean, square = _column_sums(y, y, y, y, 0, 0, 0.0, 0.0, **flags) / len(y)
    return mean + y[0].double(), (square - mean.square()).clamp(min=0)


def _hat(hat: Hat) -> tuple[int, float, float]:
    """Bits, step and lowest value of x_hat as it was kept."""
    return (0, 0.0, 0.0) if hat.packed is None else (hat.bits, hat.step, hat.low)


def _size(x: Tensor | None) -> int:
    return 0 if x is None else x.numel()


def norm_act(y: Tensor, norm: Norm, act: NormAct) -> NormActResult:
    """See :func:`.reference.norm_act`."""
    y, n, coded = y.contiguous(), y.numel(), act.bits > 0
    wants_values = act.want_values or not coded
    values = (torch.empty_like(y) if act.values_out is None else act.values_out) if wants_values else None
    codes = torch.empty(y.shape, dtype=torch.uint8, device=y.device) if act.want_codes and coded else None
    packed, mask = (_bytes(n, bits, y) if act.save and coded else None for bits in (act.bits, 1))
    hat = _bytes(n, act.hat_bits, y) if act.save and act.hat_bits else None
    kind, residual = 0, act.residual_codes
    if residual is not None:
        kind = 1
    elif act.residual_values is not None:
        kind, residual = 2, act.residual_values
    affine = (c.contiguous() for c in (norm.hat_mul, norm.hat_add, norm.mul, norm.add))
    tensors = None if residual is None else residual.contiguous(), values, codes, packed, mask, hat
    sizes = n, y.shape[1], *map(_size, (packed, mask, hat))
    floats = float(act.residual_step), float(act.scale), float(act.step), act.hat_scale
    _launch(
        norms.norm_act_kernel,
        y,
        _blocks(n),
        *(y, *affine),
        *(y if t is None else t for t in tensors),  # what is not there is not touched
        *(*sizes, *floats),
        BITS=act.bits,
        HAT_BITS=act.hat_bits,
        RESIDUAL=kind,
        VALUES=act.want_values,
        CODES=codes is not None,
        SAVE=act.save,
        GROUPS=_GROUPS,
    )
    return NormActResult(values=values, codes=codes, packed=packed, mask=mask, hat=hat)


def norm_backward_sums(g: Tensor, mask: Tensor | None, hat: Hat, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """See :func:`.reference.norm_backward_sums`."""
    g = g.contiguous()
    bits, step, low = _hat(hat)
    tensors = (g if t is None else t for t in (mask, hat.packed, out))
    flags = {"STATS": False, "MASKED": mask is not None, "HAT_BITS": bits, "KEEP": out is not None}
    total, product = _column_sums(g, *tensors, _size(mask), _size(hat.packed), step, low, **flags)
    return total, product


def norm_backward_apply(
    g: Tensor,
    mask: Tensor | None,
    hat: Hat,
    coefficients: Coefficients,
    bits: int | None,
    out: Tensor,
    centres: GradientCentres = "quantile",
) -> bool | Tensor:
    """See :func:`.reference.norm_backward_apply`."""
    g, n = g.contiguous(), g.numel()
    hat_bits, step, low = _hat(hat)
    kept = (g if t is None else t for t in (mask, hat.packed))
    per_channel = (c.contiguous() for c in coefficients)
    numbers = n, g.shape[1], _size(mask), _size(hat.packed), step, low
    flags = {"MASKED": mask is not None, "HAT_BITS": hat_bits, "BLOCK": _BLOCK}
    _launch(norms.backward_apply_kernel, g, _blocks(n), g, *kept, *per_channel, out, *numbers, **flags)
    if bits is None:
        return all_finite(out)
    hist, *ends = key_histogram(out)
    table = TABLES[centres](hist, n, bits, *ends)
    if table is None:
        return False
    table_apply(out, table, out)
    return table.finite()


def step_target(
    packed: Tensor, bits: int, n: int, table: Tensor, gradient: Tensor, gradient_bits: int, centres: Tensor, rate: float
) -> Tensor:
    """See :func:`.reference.step_target`."""
    out = torch.empty(n, dtype=torch.float64, device=packed.device)
    tensors = packed.contiguous(), table.contiguous(), gradient.contiguous(), centres.contiguous(), out
    numbers = n, packed.numel(), gradient.numel(), _pattern(rate)
    sizes = {"BITS": bits, "MOVES": gradient_bits, "BLOCK": _BLOCK}
    _launch(codes_of.step_target_kernel, packed, _blocks(n), *tensors, *numbers, **sizes)
    return out


def round_pack(y: Tensor, bits: int, scale: float, snap: float, uniform: Tensor | None) -> Tensor:
    """See :func:`.reference.round_pack`."""
    y = y.contiguous()
    n, out = y.numel(), _bytes(y.numel(), bits, y)
    draws = y if uniform is None else uniform.contiguous()
    numbers = n, out.numel(), _pattern(scale), _pattern(snap)
    sizes = {"BITS": bits, "STOCHASTIC": uniform is not None, "GROUPS": _GROUPS}
    _launch(codes_of.round_pack_kernel, y, _blocks(n), y, draws, out, *numbers, **sizes)
    return out


__all__ = [
    "TABLES",
    "code_apply",
    "key_histogram",
    "mean_table",
    "norm_act",
    "norm_backward_apply",
    "norm_backward_sums",
    "norm_stats",
    "odd_sums",
    "pack",
    "quantile_table",
    "quantize_pack",
    "round_pack",
    "step_target",
    "table_apply",
    "unpack",
    "unpack_affine",
    "unpack_table",
]
