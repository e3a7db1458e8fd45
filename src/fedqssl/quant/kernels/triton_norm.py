"""Triton kernels of batch norm with what surrounds it: statistics, activation and packing in one pass, and the backward pass.

Sums over rows are in the order of :func:`.types.block_rows`, without atomics: the same bits on
every run, and on every backend.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedqssl.quant.kernels.triton_codes import elements, load_codes, rint, store_packed, within


@triton.jit
def masked_and_hat(
    g, mask, hat, i, inside, mask_size, hat_size, hat_step, hat_low, MASKED: tl.constexpr, HAT_BITS: tl.constexpr
):
    """The gradient where the activation was not clipped, and x_hat as it was kept (0 without a batch norm)."""
    value = tl.load(g + i, mask=inside, other=0.0)
    if MASKED:
        value = tl.where(load_codes(mask, i, inside, mask_size, 1) != 0, value, 0.0)
    x_hat = tl.zeros_like(value)
    if HAT_BITS > 0:
        x_hat = load_codes(hat, i, inside, hat_size, HAT_BITS).to(tl.float32) * hat_step + hat_low
    return value, x_hat


@triton.jit
def block_sums_kernel(
    g,
    mask,
    hat,
    out,
    sums,
    products,
    rows,
    channels,
    step,
    blocks,
    mask_size,
    hat_size,
    hat_step,
    hat_low,
    STATS: tl.constexpr,
    MASKED: tl.constexpr,
    HAT_BITS: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Per channel and block of ``step`` rows, two sums in float32, each over one row after the other; (blocks, channels).

    STATS: of ``g - g[0]`` and of its square. Else of the masked g, which is kept in ``out`` if KEEP, and of ``g * x_hat``.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    first = tl.load(g + column, mask=known, other=0.0)
    total = tl.zeros((BLOCKS, COLUMNS), tl.float32)
    product = tl.zeros((BLOCKS, COLUMNS), tl.float32)
    for k in range(step):
        row = block * step + k
        inside = (row < rows)[:, None] & known[None, :]
        i = row[:, None] * channels + column[None, :]
        if STATS:
            value = tl.where(inside, tl.load(g + i, mask=inside, other=0.0) - first[None, :], 0.0)
            other = value
        else:
            value, other = masked_and_hat(
                g, mask, hat, i, inside, mask_size, hat_size, hat_step, hat_low, MASKED, HAT_BITS
            )
            if KEEP:
                tl.store(out + i, value, mask=inside)
        total += value
        product += value * other
    at = block[:, None] * channels + column[None, :]
    inside = (block < blocks)[:, None] & known[None, :]
    tl.store(sums + at, total, mask=inside)
    tl.store(products + at, product, mask=inside)


@triton.jit
def add_in_order_kernel(parts, out, count, groups, group, channels, COLUMNS: tl.constexpr):
    """Sums in float64 over groups of ``group`` rows of ``parts``, (2, count, channels), one row after the other."""
    which, column = tl.program_id(2).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    total = tl.zeros((COLUMNS,), tl.float64)
    first = tl.program_id(0).to(tl.int64) * group
    for k in range(tl.minimum(group, count - first)):
        at = (which * count + first + k) * channels + column
        total += tl.load(parts + at, mask=known, other=0.0).to(tl.float64)
    tl.store(out + (which * groups + tl.program_id(0)) * channels + column, total, mask=known)


@triton.jit
def backward_apply_kernel(
    g,
    mask,
    hat,
    mul,
    hat_mul,
    add,
    out,
    n,
    channels,
    mask_size,
    hat_size,
    hat_step,
    hat_low,
    MASKED: tl.constexpr,
    HAT_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``g * mul + x_hat * hat_mul + add``; out may be g."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    value, x_hat = masked_and_hat(g, mask, hat, i, inside, mask_size, hat_size, hat_step, hat_low, MASKED, HAT_BITS)
    c = i % channels
    a = tl.load(mul + c, mask=inside, other=0.0)
    b = tl.load(hat_mul + c, mask=inside, other=0.0)
    d = tl.load(add + c, mask=inside, other=0.0)
    tl.store(out + i, value * a + x_hat * b + d, mask=inside)


@triton.jit
def norm_act_kernel(
    y,
    hat_mul,
    hat_add,
    mul,
    add,
    residual,
    values,
    codes,
    packed,
    mask,
    hat,
    n,
    channels,
    packed_size,
    mask_size,
    hat_size,
    residual_step,
    scale,
    step,
    hat_scale,
    BITS: tl.constexpr,
    HAT_BITS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    VALUES: tl.constexpr,
    CODES: tl.constexpr,
    SAVE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Batch norm's affine maps, residual, clip, rounding, packed codes, clip mask and x_hat: each input is read once.

    RESIDUAL: 0 for none, 1 for codes, 2 for floats. BITS = 0: no activation, z itself comes out.
    """
    i, group = elements(GROUPS)
    inside = i < n
    c = i % channels
    x_hat = tl.load(y + i, mask=inside, other=0.0) * tl.load(hat_mul + c) + tl.load(hat_add + c)
    z = x_hat * tl.load(mul + c) + tl.load(add + c)
    if RESIDUAL == 1:
        z = z + tl.load(residual + i, mask=inside, other=0).to(tl.float32) * residual_step
    if RESIDUAL == 2:
        z = z + tl.load(residual + i, mask=inside, other=0.0)
    if SAVE and HAT_BITS > 0:
        level = within(x_hat * hat_scale + ((1 << HAT_BITS) - 1) * 0.5, (1 << HAT_BITS) - 1.0)
        store_packed(hat, tl.where(inside, rint(level), 0.0).to(tl.int32), group, hat_size, HAT_BITS)
    if BITS == 0:
        tl.store(values + i, z, mask=inside)
    else:
        level = z * scale
        code = tl.where(inside, rint(within(level, (1 << BITS) - 1.0)), 0.0)
        if VALUES:
            tl.store(values + i, code * step, mask=inside)
        if CODES:
            tl.store(codes + i, code.to(tl.int32).to(tl.uint8), mask=inside)
        if SAVE:
            open_ = inside & (level > 0.0) & (level < (1 << BITS) - 1.0)
            store_packed(mask, open_.to(tl.int32), group, mask_size, 1)
            store_packed(packed, code.to(tl.int32), group, packed_size, BITS)
