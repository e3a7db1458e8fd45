"""Triton kernels of codes: packing, uniform and quantile quantization, the weight update. :mod:`.triton_kernels` calls them.

Eight codes of s bits are s whole bytes, so a group of eight codes belongs to one program and no byte is written twice. Element
numbers are int64: a tensor may have more than 2^31 bits. Every load and store is masked. ``rint`` adds and subtracts a power of
two, which rounds half to even on every backend. float64 numbers arrive as the bit patterns of integers, because Triton passes
Python's floats in 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rint(t):
    """Round to the nearest integer, half to even; 0 <= t < 2^22."""
    return (t + 8388608.0) - 8388608.0


@triton.jit
def within(t, top):
    """NaN to 0, everything else to [0, top]."""
    return tl.minimum(tl.maximum(tl.where(t != t, 0.0, t), 0.0), top)


@triton.jit
def elements(GROUPS: tl.constexpr):
    """Numbers (GROUPS, 8) of this program's elements, and those of its groups (GROUPS,)."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    return group[:, None] * 8 + tl.arange(0, 8)[None, :], group


@triton.jit
def store_packed(out, codes, group, size, BITS: tl.constexpr):
    """Store groups of eight codes (GROUPS, 8), int32, as BITS bytes each of the ``size`` bytes of a stream."""
    first = tl.arange(0, 8) * BITS  # where each code of a group begins, in bits
    for b in tl.static_range(BITS):
        shift = first - 8 * b
        left = tl.minimum(tl.maximum(shift, 0), 8)
        right = tl.minimum(tl.maximum(-shift, 0), 16)
        part = ((codes >> right[None, :]) << left[None, :]) & 255
        byte = tl.sum(tl.where((shift < 8)[None, :], part, 0), 1)  # bits do not overlap: a sum is an or
        at = group * BITS + b
        tl.store(out + at, byte.to(tl.uint8), mask=at < size)


@triton.jit
def load_codes(packed, i, inside, size, BITS: tl.constexpr):
    """Codes of the elements ``i`` of a stream of ``size`` bytes, as int32; 0 where not ``inside``."""
    bit = i * BITS
    at = bit >> 3
    word = tl.load(packed + at, mask=inside & (at < size), other=0).to(tl.int32)
    if 8 % BITS != 0:
        word = word | (tl.load(packed + at + 1, mask=inside & (at + 1 < size), other=0).to(tl.int32) << 8)
    if 16 % BITS != 0 and BITS > 9:
        word = word | (tl.load(packed + at + 2, mask=inside & (at + 2 < size), other=0).to(tl.int32) << 16)
    return (word >> (bit & 7).to(tl.int32)) & ((1 << BITS) - 1)


@triton.jit
def pack_kernel(codes, out, n, size, BITS: tl.constexpr, GROUPS: tl.constexpr):
    """Codes to a stream."""
    i, group = elements(GROUPS)
    code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32) & ((1 << BITS) - 1)  # 16 bits arrive with a sign
    store_packed(out, code, group, size, BITS)


@triton.jit
def unpack_kernel(packed, out, n, size, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """A stream to codes."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = load_codes(packed, i, i < n, size, BITS)
    tl.store(out + i, code.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def unpack_affine_kernel(packed, out, n, size, mul, add, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """``code * mul + add`` in two operations."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = load_codes(packed, i, i < n, size, BITS)
    tl.store(out + i, code.to(tl.float32) * mul + add, mask=i < n)


@triton.jit
def unpack_table_kernel(packed, table, out, n, size, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """``table[code]``."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    code = load_codes(packed, i, i < n, size, BITS)
    tl.store(out + i, tl.load(table + code, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def quantize_pack_kernel(x, out, n, size, mul, BITS: tl.constexpr, GROUPS: tl.constexpr):
    """``round(clamp(x * mul, 0, 2^BITS - 1))``, packed."""
    i, group = elements(GROUPS)
    t = within(tl.load(x + i, mask=i < n, other=0.0) * mul, (1 << BITS) - 1.0)
    store_packed(out, rint(t).to(tl.int32), group, size, BITS)


@triton.jit
def key_of(x, EXTRA: tl.constexpr):
    """The upper 16 + EXTRA bits of floats."""
    return (x.to(tl.uint32, bitcast=True) >> (16 - EXTRA)).to(tl.int32)


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr):
    """Count floats by their upper 16 bits. Integer additions commute, so the order of the atomics does not matter.

    Half of a gradient may be exact zeros (clipped activations): these are added up first, and make one atomic of a program.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    key = key_of(tl.load(x + i, mask=inside, other=0.0), 0)
    for sign in tl.static_range(2):
        zeros = tl.sum((inside & (key == sign * 32768)).to(tl.int32), 0)
        tl.atomic_add(counts + sign * 32768, zeros, mask=zeros > 0, sem="relaxed")
    tl.atomic_add(counts + key, 1, mask=inside & ((key & 32767) != 0), sem="relaxed")


@triton.jit
def stands_for(key, end, EXTRA: tl.constexpr):
    """Which keys are those of an end point, which its own entry stands for exactly; 0 has two."""
    one = key_of(end, EXTRA)
    return (key == one) | (key == tl.where(end == 0.0, 32768 << EXTRA, one))


@triton.jit
def table_kernel(centres, low, high, values, codes, BITS: tl.constexpr, EXTRA: tl.constexpr, BLOCK: tl.constexpr):
    """Per key of 16 + EXTRA bits, the centre nearest to the middle of its interval and that centre's code.

    There are whole blocks of keys, and 2^BITS centres, so that nothing is masked. ``low`` and ``high`` are never -0.
    """
    key = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(low), tl.load(high)
    middle = ((key.to(tl.uint32) << (16 - EXTRA)) | (1 << (15 - EXTRA))).to(tl.float32, bitcast=True)
    middle = tl.where(((key >> EXTRA) & 0x7F80) == 0, 0.0, middle)
    middle = tl.minimum(tl.maximum(middle, first), last)
    at = tl.zeros((BLOCK,), tl.int32)  # the first centre that is not below, or the last one: by halving
    for b in tl.static_range(BITS):
        half = 1 << (BITS - 1 - b)
        at += tl.where(tl.load(centres + at + half - 1) < middle, half, 0)
    down = tl.maximum(at - 1, 0)
    code = tl.where(middle - tl.load(centres + down) <= tl.load(centres + at) - middle, down, at)
    code = tl.where(stands_for(key, first, EXTRA), 0, code)
    code = tl.where(stands_for(key, last, EXTRA), (1 << BITS) - 1, code)
    tl.store(values + key, tl.load(centres + code))
    tl.store(codes + key, code)


@triton.jit
def look_up_kernel(x, table, out, n, EXTRA: tl.constexpr, BLOCK: tl.constexpr):
    """The entry of a table for the upper 16 + EXTRA bits of every float; out may be x."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x + i, mask=i < n, other=0.0), EXTRA)
    tl.store(out + i, tl.load(table + key, mask=i < n, other=0).to(out.dtype.element_ty), mask=i < n)


@triton.jit(do_not_specialize=["rate"])
def step_target_kernel(
    packed,
    table,
    gradient,
    centres,
    out,
    n,
    size,
    moves,
    rate,
    BITS: tl.constexpr,
    MOVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``x - a g`` in float64, from the codes of both and what they stand for."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(table + load_codes(packed, i, inside, size, BITS), mask=inside, other=0.0)
    g = tl.load(centres + load_codes(gradient, i, inside, moves, MOVES), mask=inside, other=0.0).to(tl.float64)
    tl.store(out + i, x - rate.to(tl.int64).to(tl.float64, bitcast=True) * g, mask=inside)


@triton.jit(do_not_specialize=["scale", "snap"])
def round_pack_kernel(
    y, uniform, out, n, size, scale, snap, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, GROUPS: tl.constexpr
):
    """Codes of ``(y / scale + 1) (2^BITS - 1) / 2`` in float64, to nearest or by the given random numbers, packed."""
    i, group = elements(GROUPS)
    inside = i < n
    m = scale.to(tl.int64).to(tl.float64, bitcast=True)
    t = (tl.load(y + i, mask=inside, other=0.0) / m + 1.0) * (((1 << BITS) - 1.0) / 2.0)
    t = within(t, ((1 << BITS) - 1.0))
    code = (t + 4503599627370496.0) - 4503599627370496.0
    if STOCHASTIC:
        low = tl.floor(t)
        up = low + (tl.load(uniform + i, mask=inside, other=1.0) < t - low).to(tl.float64)
        near = tl.abs(t - code) <= snap.to(tl.int64).to(tl.float64, bitcast=True)
        code = tl.minimum(tl.where(near, code, up), (1 << BITS) - 1.0)
    store_packed(out, tl.where(inside, code, 0.0).to(tl.int32), group, size, BITS)
