"""Plain-torch kernels: the specification of every fast kernel, the fallback without a compiler, and the GPU path.

Bit order of a packed stream of s-bit codes: code i occupies bits ``[i*s, (i+1)*s)`` of the stream; bit j of the stream
is bit ``j % 8`` (least significant first) of byte ``j // 8``. A stream of n codes has exactly ``ceil(n*s/8)`` bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedqssl.quant.kernels.types import KeyTable, Norm, NormAct, NormActResult

NAME = "torch"
_CHUNK = 1 << 20  # codes expanded to single bits at a time
_KEYS = 1 << 16


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


def round_codes(levels: Tensor, top: int) -> Tensor:
    """``round(clamp(levels, 0, top))``, half to even, NaN to 0, still as floats."""
    return torch.nan_to_num(levels, nan=0.0, posinf=float(top), neginf=0.0).clamp(0, top).round()


def quantize_pack(x: Tensor, bits: int, mul: float) -> Tensor:
    """Pack ``round(clamp(x * mul, 0, 2^bits - 1))`` of a flat float tensor."""
    return pack(round_codes(x * mul, 2**bits - 1).to(torch.int32).to(code_dtype(bits)), bits)


def unpack_affine(packed: Tensor, bits: int, n: int, mul: float, add: float) -> Tensor:
    """``code * mul + add`` as a flat float tensor."""
    return unpack(packed, bits, n).to(torch.float32).mul_(mul).add_(add)


def unpack_table(packed: Tensor, bits: int, n: int, table: Tensor) -> Tensor:
    """``table[code]`` as a flat float tensor."""
    return table[unpack(packed, bits, n).to(torch.int64)]


def float_keys(x: Tensor) -> Tensor:
    """The upper 16 bits of each float32: sign, exponent and 7 bits of mantissa."""
    return x.contiguous().view(torch.int32).flatten() >> 16 & 0xFFFF


def key_histogram(x: Tensor) -> tuple[Tensor, float, float]:
    """How many floats have each key, the smallest and the largest float (the table is by raw key)."""
    low, high = torch.aminmax(x)
    return torch.bincount(float_keys(x), minlength=_KEYS), float(low), float(high)


def key_values(low: float, high: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Raw keys in ascending order of their floats, and the float that stands for each of them.

    That is the middle of the key's interval; 0 for zeros and denormals; never outside ``[low, high]``.
    """
    order = torch.arange(_KEYS, device=device)
    raw = torch.where(order >= 0x8000, order - 0x8000, 0xFFFF - order)
    signed = torch.where(raw >= 0x8000, raw - 0x10000, raw).to(torch.int32)
    values = (signed * 65536 + 0x8000).view(torch.float32)
    values = torch.where((raw & 0x7F80) == 0, torch.zeros((), device=device), values)
    return raw, values.clamp(low, high)


def quantile_table(hist: Tensor, n: int, bits: int, low: float, high: float) -> KeyTable | None:
    """Centres ``Quantile(i / (2^bits - 1))`` of the keys and, per raw key, the nearest centre; None if not finite."""
    last = 2**bits - 1
    hist = hist.to(torch.int64)
    exponent = torch.arange(_KEYS, device=hist.device) & 0x7F80
    if bool(hist[exponent == 0x7F80].any()):
        return None
    raw, values = key_values(low, high, hist.device)
    ranks = torch.arange(last + 1, device=hist.device, dtype=torch.int64) * n
    ranks = ((ranks + last - 1) // last).clamp(min=1)
    centres = values[torch.searchsorted(hist[raw].cumsum(0), ranks)]
    centres[0], centres[last] = low, high
    at = torch.searchsorted(centres, values).clamp(max=last)
    down = (at - 1).clamp(min=0)
    code = torch.where(values - centres[down] <= centres[at] - values, down, at)
    codes = torch.empty_like(code)
    codes[raw] = code
    ends = float_keys(torch.tensor([low, high], device=hist.device))
    codes[ends[0]], codes[ends[1]] = 0, last
    if low == 0:
        codes[0] = codes[0x8000] = 0
    if high == 0:
        codes[0] = codes[0x8000] = last
    return KeyTable(centres, centres[codes], codes)


def table_apply(x: Tensor, table: KeyTable) -> Tensor:
    """Every float replaced by its key's centre."""
    return table.values[float_keys(x).to(torch.int64)].view_as(x)


def code_apply(x: Tensor, table: KeyTable) -> Tensor:
    """The code of every float's centre, flat, as uint16."""
    return table.codes[float_keys(x).to(torch.int64)].to(torch.int32).to(torch.uint16)


def norm_stats(y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each column of a (rows, channels) matrix, in float64."""
    shift = y[:1]
    sums = (y - shift).double()
    mean = sums.mean(0)
    var = (sums.square().mean(0) - mean.square()).clamp(min=0)
    return mean + shift[0].double(), var


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
        levels = x_hat * (1.0 / act.hat_step) + top * 0.5
        hat = pack(round_codes(levels, top).to(torch.uint8).flatten(), act.hat_bits)
    if act.bits == 0:
        return NormActResult(values=z, codes=None, packed=None, mask=None, hat=hat)
    levels = z * act.scale
    top = 2**act.bits - 1
    codes = round_codes(levels, top)
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


def _unpack_hat(hat: Tensor | None, like: Tensor, bits: int, step: float) -> Tensor:
    if hat is None:
        return torch.zeros_like(like)
    offset = -0.5 * (2**bits - 1) * step
    return unpack_affine(hat, bits, like.numel(), step, offset).view_as(like)


def apply_mask(g: Tensor, mask: Tensor | None) -> Tensor:
    """Zero where the activation was clipped."""
    return g if mask is None else g * unpack(mask, 1, g.numel()).view_as(g)


def norm_backward_sums(
    g: Tensor, mask: Tensor | None, hat: Tensor | None, hat_bits: int, hat_step: float, want_masked: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Per channel, sums of the masked g and of ``g * x_hat`` in float64; and the masked g if wanted."""
    g = apply_mask(g, mask)
    x_hat = _unpack_hat(hat, g, hat_bits, hat_step)
    return g.double().sum(0), (g.double() * x_hat).sum(0), g if want_masked else None


def norm_backward_apply(
    g: Tensor,
    mask: Tensor | None,
    hat: Tensor | None,
    hat_bits: int,
    hat_step: float,
    coefficients: tuple[Tensor, Tensor, Tensor],
    quantile_bits: int | None,
) -> tuple[Tensor, bool]:
    """``dx = g * mul + x_hat * hat_mul + add``, quantile-quantized in place if bits are given; and "all is finite"."""
    mul, hat_mul, add = coefficients
    dx = apply_mask(g, mask) * mul + _unpack_hat(hat, g, hat_bits, hat_step) * hat_mul + add
    if quantile_bits is None:
        return dx, bool(torch.isfinite(dx).all())
    hist, low, high = key_histogram(dx)
    table = quantile_table(hist, dx.numel(), quantile_bits, low, high)
    return (dx, False) if table is None else (table_apply(dx, table), True)
