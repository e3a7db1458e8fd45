"""Plain-torch kernels: the specification of every fast kernel, the fallback without a compiler, and the GPU path.

Bit order of a packed stream of s-bit codes: code i occupies bits ``[i*s, (i+1)*s)`` of the stream; bit j of the stream
is bit ``j % 8`` (least significant first) of byte ``j // 8``. A stream of n codes has exactly ``ceil(n*s/8)`` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

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
from fedqssl.quant.rounding import grid_codes

NAME = "torch"
_CHUNK = 1 << 20  # codes expanded to single bits at a time
_KEYS = 1 << 16

End = float | Tensor
"""The smallest or the largest entry of a tensor: a number, or on a GPU a tensor, so that the host does not wait for it."""


def code_dtype(bits: int) -> torch.dtype:
    """The smallest unsigned integer type that holds ``bits`` bits."""
    return torch.uint8 if bits <= 8 else torch.uint16


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack a flat tensor of codes into ``ceil(n*bits/8)`` bytes."""
    n = codes.numel()
    out = torch.empty((n * bits + 7) // 8, dtype=torch.uint8, device=codes.device)
    shifts = torch.arange(bits, device=codes.device, dtype=torch.int32)
    weights = 2 ** torch.arange(8, device=codes.device, dtype=torch.int32)
    for start in range(0, n, _CHUNK):
        part = codes[start : start + _CHUNK].to(torch.int32)
        stream = (part.unsqueeze(1) >> shifts & 1).flatten()  # (n*bits,)
        stream = torch.nn.functional.pad(stream, (0, -stream.numel() % 8)).view(-1, 8)
        at = start * bits // 8
        out[at : at + stream.shape[0]] = (stream * weights).sum(1).to(torch.uint8)
    return out


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Inverse of :func:`pack`: the flat tensor of ``n`` codes."""
    out = torch.empty(n, dtype=code_dtype(bits), device=packed.device)
    shifts = torch.arange(8, device=packed.device, dtype=torch.int32)
    weights = 2 ** torch.arange(bits, device=packed.device, dtype=torch.int32)
    for start in range(0, n, _CHUNK):
        count = min(_CHUNK, n - start)
        at, size = start * bits // 8, (count * bits + 7) // 8
        stream = (packed[at : at + size].to(torch.int32).unsqueeze(1) >> shifts & 1).flatten()
        codes = (stream[: count * bits].view(count, bits) * weights).sum(1)
        out[start : start + count] = codes.to(out.dtype)
    return out


def quantize_pack(x: Tensor, bits: int, mul: float) -> Tensor:
    """Pack ``round(clamp(x * mul, 0, 2^bits - 1))`` of a flat float tensor."""
    return pack(grid_codes(x * mul, 2**bits - 1).to(torch.int32).to(code_dtype(bits)), bits)


def unpack_affine(packed: Tensor, bits: int, n: int, mul: float, add: float, out: Tensor | None = None) -> Tensor:
    """``code * mul + add`` as a flat float tensor; into ``out`` if given."""
    values = unpack(packed, bits, n).to(torch.float32).mul_(mul).add_(add)
    return values if out is None else out.copy_(values)


def unpack_table(packed: Tensor, bits: int, n: int, table: Tensor) -> Tensor:
    """``table[code]`` as a flat float tensor."""
    return table[unpack(packed, bits, n).to(torch.int64)]


def float_keys(x: Tensor) -> Tensor:
    """The upper 16 bits of each float32: sign, exponent and 7 bits of mantissa."""
    return x.contiguous().view(torch.int32).flatten() >> 16 & 0xFFFF


def key_histogram(x: Tensor) -> tuple[Tensor, End, End]:
    """How many floats have each key, the smallest and the largest float (the table is by raw key)."""
    low, high = extent(x)
    return torch.bincount(float_keys(x), minlength=_KEYS), low, high


def extent(x: Tensor) -> tuple[End, End]:
    """The smallest and the largest entry, NaN if there is one: numbers on the CPU; those of a GPU stay there."""
    low, high = torch.aminmax(x)
    return (float(low), float(high)) if x.device.type == "cpu" else (low, high)


def ordered_keys(hist: Tensor) -> tuple[Tensor, Tensor]:
    """Raw keys in ascending order of their floats, and their counts.

    On the CPU those that occur. Elsewhere all: their number would have to be waited for.
    """
    order = torch.arange(_KEYS, device=hist.device)
    raw = torch.where(order >= 0x8000, order - 0x8000, 0xFFFF - order)
    count = hist.to(torch.int64)[raw]
    return (raw[count > 0], count[count > 0]) if hist.device.type == "cpu" else (raw, count)


def end_tensors(hist: Tensor, smallest: End, largest: End) -> tuple[Tensor, Tensor] | None:
    """Both ends as tensors where the histogram is, +0 instead of -0; None if they are known not to be finite."""
    if not all(isinstance(end, Tensor) or math.isfinite(end) for end in (smallest, largest)):
        return None
    low, high = (torch.as_tensor(end, dtype=torch.float32, device=hist.device) + 0.0 for end in (smallest, largest))
    return low, high


def _float_of(bits: Tensor) -> Tensor:
    """The float32 of 32-bit patterns that are held as non-negative int64."""
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def centres_of(raw: Tensor, count: Tensor, n: int, bits: int, low: Tensor, high: Tensor) -> Tensor:
    """Centres, interpolated evenly within their key; raw keys and their counts in ascending order."""
    last = 2**bits - 1
    ranks = ((torch.arange(last + 1, device=raw.device) * n + last - 1) // last).clamp(min=1)
    seen = count.cumsum(0)
    at = torch.searchsorted(seen, ranks)
    key = raw[at]
    part = ((ranks - (seen - count)[at]).double() - 0.5) / count[at].double()
    part = torch.where(key >= 0x8000, 1.0 - part, part)  # a larger mantissa is a smaller number
    start, end = _float_of(key << 16).double(), _float_of(key << 16 | 0xFFFF).double()
    centres = (start + part * (end - start)).float()
    centres = torch.where((key & 0x7F80) == 0, 0.0, centres).clamp(low, high)
    centres[0].fill_(low)
    centres[last].fill_(high)
    return centres


def quantile_table(hist: Tensor, n: int, bits: int, smallest: End, largest: End) -> KeyTable | None:
    """Centres ``Quantile(i / (2^bits - 1))`` to within a key, and the nearest one per finer key; None if not finite.

    Both ends are those of :func:`key_histogram`. An entry that nobody looks up may hold anything. On a GPU nobody waits to learn
    whether all is finite: see :meth:`KeyTable.finite`.
    """
    device, last, extra = hist.device, 2**bits - 1, extra_bits(bits)
    ends = end_tensors(hist, smallest, largest)
    if ends is None:
        return None
    low, high = ends
    raw, count = ordered_keys(hist)
    centres = centres_of(raw, count, n, bits, low, high)
    sparse = device.type == "cpu"
    keys = raw if sparse else torch.arange(_KEYS, device=device)  # in their own order, as the table has them
    fine, middle = _parts(keys, extra, low, high)
    at = torch.searchsorted(centres, middle).clamp(max=last)
    down = (at - 1).clamp(min=0)
    codes = torch.where(middle - centres[down] <= centres[at] - middle, down, at)
    if sparse:
        codes = torch.zeros(_KEYS << extra, dtype=torch.int64, device=device).index_put_((fine,), codes)
    for end, code in ((low, 0), (high, last)):  # the entries of the end points stand for them exactly; 0 has two
        both = torch.stack((end, torch.where(end == 0, -end, end)))
        codes.index_fill_(0, _fine_keys(both, extra), code)
    return KeyTable(centres, centres[codes], codes, extra)


def _parts(keys: Tensor, extra: int, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of 16 + extra bits, flat, and the middles of their intervals: 0 for zeros and denormals."""
    fine = (keys.unsqueeze(1) << extra | torch.arange(2**extra, device=keys.device)).flatten()
    middle = _float_of(fine << (16 - extra) | 1 << (15 - extra))
    return fine, torch.where((fine >> extra & 0x7F80) == 0, 0.0, middle).clamp(low, high)


def _units(raw: Tensor, count: Tensor) -> Tensor:
    """``sqrt(count * width)`` of every key as integers of up to 24 bits, whose sums are exact in any order."""
    exponent = raw & 0x7F80
    width = (_float_of(raw << 16 | 0xFFFF).double() - _float_of(raw << 16).double()).abs()
    weight = (count * torch.where((exponent == 0) | (exponent == 0x7F80), 0.0, width)).sqrt()
    heaviest = weight.max()
    return (weight * torch.where(heaviest > 0, 2.0**24 / heaviest, 0.0)).round().to(torch.int64)


def _cell_means(cell: Tensor, values: Tensor, entries: Tensor, cells: int) -> Tensor:
    """Means of the entries of each cell, from cells in ascending order; an empty cell has that of the one before it."""
    upto = torch.searchsorted(cell, torch.arange(cells, device=cell.device), right=True)
    sums, counts = (
        torch.nn.functional.pad(x.cumsum(0), (1, 0))[upto].diff(prepend=x.new_zeros(1))
        for x in (entries * values, entries)
    )
    means = torch.where(counts > 0, sums / counts, -math.inf).float().cummax(0).values
    return means.clamp(min=torch.where(torch.isinf(means), math.inf, means).min())  # nothing is before the first


def mean_table(hist: Tensor, n: int, bits: int, smallest: End, largest: End) -> KeyTable | None:
    """``2^bits`` cells of equal weight, each standing for the mean of its entries; arguments and result as for quantiles.

    A key weighs ``sqrt(entries * width)``: between equal numbers of entries (quantiles, whose outermost cells are so wide that
    they lose a tenth of a gradient) and ``(entries * width^2)^(1/3)``, which has the least squared error. Means keep sums: no
    cell pulls what it stands for to one side. Only keys that weigh more than a cell are cut into parts.
    """
    device, cells, extra = hist.device, 2**bits, extra_bits(bits)
    parts = 2**extra
    ends = end_tensors(hist, smallest, largest)
    if ends is None:
        return None
    raw, count = ordered_keys(hist)
    units, ascending = _units(raw, count).unsqueeze(1), torch.arange(parts, device=device)
    within = torch.where((raw >= 0x8000).unsqueeze(1), parts - 1 - ascending, ascending)  # a larger mantissa is smaller
    values = _parts(raw, extra, *ends)[1].view(-1, parts).gather(1, within).double()
    before, total = units.cumsum(0) - units, units.sum().clamp(min=1)
    whole = torch.where(units * cells >= total, (2 * ascending + 1) * units, parts * units)
    cell = (2 * parts * before + whole) * cells // (2 * parts * total)
    cell = cell.clamp(max=cells - 1)  # zeros at the very end weigh nothing
    entries = (count.double() / parts).unsqueeze(1).expand_as(values)
    centres = _cell_means(cell.flatten(), values.flatten(), entries.flatten(), cells)
    codes = torch.zeros(_KEYS << extra, dtype=torch.int64, device=device)
    codes.index_put_(((raw.unsqueeze(1) << extra | within).flatten(),), cell.flatten())
    return KeyTable(centres, centres[codes], codes, extra)


TABLES: dict[GradientCentres, Callable[[Tensor, int, int, End, End], KeyTable | None]] = {
    "quantile": quantile_table,
    "mean": mean_table,
}


def _fine_keys(x: Tensor, extra: int) -> Tensor:
    """The upper 16 + extra bits of each float32, flat."""
    return (x.contiguous().view(torch.int32).flatten().to(torch.int64) & 0xFFFFFFFF) >> (16 - extra)


def table_apply(x: Tensor, table: KeyTable) -> Tensor:
    """Every float replaced by its centre."""
    return table.values[_fine_keys(x, table.extra)].view_as(x)


def code_apply(x: Tensor, table: KeyTable) -> Tensor:
    """The code of every float's centre, flat, as uint16."""
    return table.codes[_fine_keys(x, table.extra)].to(torch.int32).to(torch.uint16)


def _in_order(x: Tensor, count: int) -> Tensor:
    """(rows, channels) to sums of ``count`` rows each, one row after the other; the last sum may have fewer."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % count)).view(-1, count, x.shape[1])
    total = torch.zeros_like(padded[:, 0])
    for part in padded.unbind(1):
        total += part
    return total


def column_sums(x: Tensor) -> Tensor:
    """Sums of the columns of a (rows, channels) matrix in float64, in the order of :func:`.types.block_rows`."""
    groups = _in_order(_in_order(x, block_rows(x.shape[1])).double(), GROUP)
    return _in_order(groups, max(len(groups), 1))[0]


def norm_stats(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each column of a (rows, channels) matrix, in float64."""
    moved = y - y[:1]
    mean = column_sums(moved) / len(y)
    var = (column_sums(moved.square()) / len(y) - mean.square()).clamp(min=0)
    return mean + y[0].double(), var


def norm_act(y: Tensor, norm: Norm, act: NormAct) -> NormActResult:
    """``z = x_hat * mul + add (+ residual)``, then clip, quantize and pack; see :class:`NormAct`."""
    x_hat = y * norm.hat_mul + norm.hat_add
    z = x_hat * norm.mul + norm.add
    if act.residual_codes is not None:
        z = z + act.residual_codes.to(torch.float32) * act.residual_step
    elif act.residual_values is not None:
        z = z + act.residual_values
    hat = None
    if act.save and act.hat_bits:
        top = 2**act.hat_bits - 1
        levels = x_hat * act.hat_scale + top * 0.5
        hat = pack(grid_codes(levels, top).to(torch.uint8).flatten(), act.hat_bits)
    if act.bits == 0:
        return NormActResult(values=z, codes=None, packed=None, mask=None, hat=hat)
    levels = z * act.scale
    top = 2**act.bits - 1
    codes = grid_codes(levels, top)
    mask = packed = None
    if act.save:
        mask = pack(((levels > 0) & (levels < top)).to(torch.uint8).flatten(), 1)
        packed = pack(codes.to(torch.int32).to(code_dtype(act.bits)).flatten(), act.bits)
    return NormActResult(
        values=codes * act.step if act.want_values else None,
        codes=codes.to(torch.uint8) if act.want_codes else None,
        packed=packed,
        mask=mask,
        hat=hat,
    )


def _unpack_hat(hat: Hat, like: Tensor) -> Tensor:
    if hat.packed is None:
        return torch.zeros_like(like)
    return unpack_affine(hat.packed, hat.bits, like.numel(), hat.step, hat.low).view_as(like)


def apply_mask(g: Tensor, mask: Tensor | None) -> Tensor:
    """Zero where the activation was clipped, whatever the gradient is there."""
    return g if mask is None else g.where(unpack(mask, 1, g.numel()).view_as(g) != 0, 0.0)


def norm_backward_sums(g: Tensor, mask: Tensor | None, hat: Hat, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per channel, sums of the masked g and of ``g * x_hat`` in float64; ``out`` (may be g) receives the masked g."""
    masked = apply_mask(g, mask)
    x_hat = _unpack_hat(hat, g)
    if out is not None:
        out.copy_(masked)
    return column_sums(masked), column_sums(masked * x_hat)


def norm_backward_apply(
    g: Tensor,
    mask: Tensor | None,
    hat: Hat,
    coefficients: Coefficients,
    bits: int | None,
    out: Tensor,
    centres: GradientCentres = "quantile",
) -> bool | Tensor:
    """``out = g * mul + x_hat * hat_mul + add``, quantized if bits are given; out may be g. Is all finite?"""
    mul, hat_mul, add = coefficients
    out.copy_(apply_mask(g, mask) * mul + _unpack_hat(hat, g) * hat_mul + add)
    if bits is None:
        return all_finite(out)
    hist, low, high = key_histogram(out)
    table = TABLES[centres](hist, out.numel(), bits, low, high)
    if table is None:
        return False
    out.copy_(table_apply(out, table))
    return out.device.type == "cpu" or table.finite()


def all_finite(x: Tensor) -> bool | Tensor:
    """Whether all entries are finite; of a GPU's tensor as a tensor, for which nobody has to wait."""
    fine = torch.isfinite(x).all()
    return bool(fine) if x.device.type == "cpu" else fine


def step_target(
    packed: Tensor, bits: int, n: int, table: Tensor, gradient: Tensor, gradient_bits: int, centres: Tensor, rate: float
) -> Tensor:
    """``x - a g`` in float64: codes of x with what they stand for, codes of g with its centres, and a."""
    x = unpack_table(packed, bits, n, table)
    return x - rate * unpack_table(gradient, gradient_bits, n, centres).to(x.dtype)


def round_pack(y: Tensor, bits: int, scale: float, snap: float, uniform: Tensor | None) -> Tensor:
    """Pack the codes of ``(y / scale + 1) (2^bits - 1) / 2``, rounded as by :func:`.rounding.grid_codes`, in float64."""
    top = 2**bits - 1
    t = (y.flatten() / scale + 1) * (top / 2)
    codes = grid_codes(t, top, None if uniform is None else uniform.flatten(), snap)
    return pack(codes.to(torch.int32).to(code_dtype(bits)), bits)


def odd_sums(parts: Tensor, factor: float, scale: float, out: Tensor) -> Tensor:
    """``(first * factor + rest) * scale`` into ``out``: its columns are ``first``, what ``parts`` has behind them is ``rest``.

    ``rest`` is one column for all or one for each. See :func:`.intconv.prepack_odd`.
    """
    channels = out.shape[1]
    return torch.mul(parts[:, :channels] * factor + parts[:, channels:], scale, out=out)
