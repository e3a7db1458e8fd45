"""Layer-wise quantile quantization of gradients (Sec. 3): centres ``Quantile_g(i / (2^s - 1))``, i = 0..2^s - 1.

``Quantile`` is the inverted CDF, so every centre is an entry of g; the first is its minimum, the last its maximum.
Two methods: ``exact`` sorts; ``key16`` counts the upper 16 bits of each float in O(n), so interior centres are exact to
one such key (8 bits of mantissa) and the end points exactly. ``auto`` sorts small tensors and counts large ones.

Beyond the paper, ``centres="mean"``: means of cells of equal weight (:func:`.kernels.reference.mean_table`), always by counting.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedqssl.quant.kernels import native, ops
from fedqssl.quant.kernels.reference import code_dtype
from fedqssl.quant.kernels.types import GradientCentres, KeyTable, ends_finite
from fedqssl.quant.rounding import Rounding, check_bits, check_rounding, uniform_like
from fedqssl.quant.tensor import QuantizedTensor

Method = Literal["auto", "exact", "key16"]

KEY16_FROM = 1 << 13
"""``auto`` counts keys from this many elements on; below it a sort is cheaper than a table of 65,536 keys."""


def _resolve(method: str, n: int, centres: GradientCentres = "quantile") -> str:
    if centres == "mean":
        return "key16"
    if method not in ("auto", "exact", "key16"):
        raise ValueError(f"method must be 'auto', 'exact' or 'key16', not {method!r}")
    return ("key16" if n >= KEY16_FROM else "exact") if method == "auto" else method


def _require_finite(ends: Tensor | None, wait: bool) -> None:
    """Raise an error unless both ends of the centres are finite (None: known not to be); a GPU is asked only if ``wait``."""
    asked = ends is not None and (wait or ends.device.type == "cpu")
    if ends is None or (asked and not bool(ends_finite(ends))):
        raise ValueError("cannot quantize a tensor that holds NaN or infinity")


def _key_table(flat: Tensor, bits: int, wait: bool = True, centres: GradientCentres = "quantile") -> KeyTable:
    backend = ops(flat)
    hist, low, high = backend.key_histogram(flat)
    table: KeyTable | None = backend.TABLES[centres](hist, flat.numel(), bits, low, high)
    _require_finite(None if table is None else table.centres, wait)
    assert table is not None
    return table


def _exact_centres(flat: Tensor, bits: int, wait: bool = True) -> Tensor:
    ordered = flat.sort().values
    n, last = flat.numel(), 2**bits - 1
    _require_finite(ordered, wait)  # NaN sorts last
    ranks = (torch.arange(last + 1, device=flat.device, dtype=torch.int64) * n + last - 1) // last
    return ordered[ranks.clamp(min=1) - 1]


def _nearest_codes(flat: Tensor, centres: Tensor) -> Tensor:
    up = torch.searchsorted(centres, flat).clamp(max=centres.numel() - 1)
    down = (up - 1).clamp(min=0)
    return torch.where(flat - centres[down] <= centres[up] - flat, down, up)


def _stochastic_codes(flat: Tensor, centres: Tensor, generator: torch.Generator | None) -> Tensor:
    """Upper neighbour with probability ``(x - q_i) / (q_{i+1} - q_i)``: unbiased within the range of the centres."""
    up = torch.searchsorted(centres, flat).clamp(max=centres.numel() - 1)
    down = (up - 1).clamp(min=0)
    width = (centres[up] - centres[down]).clamp(min=torch.finfo(flat.dtype).tiny)
    p = (flat - centres[down]) / width
    return torch.where(uniform_like(flat, generator) < p, up, down)


def _prepare(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32).contiguous().flatten()


def quantile_centres(x: Tensor, bits: int, method: Method = "auto", wait: bool = True) -> Tensor:
    """The ``2^bits`` centres, ascending; ties are legal. ``wait``: see :func:`quantile_quantize`."""
    check_bits(bits)
    flat = _prepare(x)
    if flat.numel() == 0:
        raise ValueError("an empty tensor has no quantiles")
    if _resolve(method, flat.numel()) == "exact":
        return _exact_centres(flat, bits, wait)
    return _key_table(flat, bits, wait).centres


def quantile_quantize(
    x: Tensor,
    bits: int,
    method: Method = "auto",
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
    wait: bool = True,
    centres: GradientCentres = "quantile",
) -> QuantizedTensor:
    """Quantize to the nearest quantile (or stochastically to one of the two neighbours).

    A tensor with no more elements than centres needs no rounding: its codebook is its own sorted entries.

    Args:
        x: a tensor of any shape, without NaN and infinity.
        bits: 1 to 16.
        method: ``exact`` (sort), ``key16`` (count), or ``auto``, which chooses by size.
        rounding: ``nearest`` or ``stochastic``.
        generator: source of random numbers for stochastic rounding.
        wait: raise an error at NaN and infinity on a GPU, too, for which the host has to wait. Without it they are found in the
            first and the last entry of the codebook.
        centres: ``quantile``, or ``mean``: each entry goes to the mean of its cell, which is not rounding to a neighbour.
    """
    check_bits(bits)
    _check_rounding(rounding, centres)
    flat = _prepare(x)
    n = flat.numel()
    if n <= 2**bits:
        codebook, codes = torch.unique(flat, sorted=True, return_inverse=True)
        if n:
            _require_finite(codebook, wait)
    elif _resolve(method, n, centres) == "key16" and rounding == "nearest":
        table = _key_table(flat, bits, wait, centres)
        codebook, codes = table.centres, ops(flat).code_apply(flat, table)
    else:
        codebook = quantile_centres(flat, bits, method, wait)
        if rounding == "nearest":
            codes = _nearest_codes(flat, codebook)
        else:
            codes = _stochastic_codes(flat, codebook, generator)
    return QuantizedTensor(codes.to(torch.int32).to(code_dtype(bits)).view(x.shape), codebook, bits)


def _check_rounding(rounding: str, centres: GradientCentres) -> None:
    check_rounding(rounding)
    if centres not in ("quantile", "mean"):
        raise ValueError(f"centres must be 'quantile' or 'mean', not {centres!r}")
    if centres == "mean" and rounding != "nearest":
        raise ValueError("centres that are means of cells take no stochastic rounding; use 'nearest'")


def quantile_round(
    x: Tensor,
    bits: int,
    method: Method = "auto",
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
    wait: bool = True,
    centres: GradientCentres = "quantile",
) -> Tensor:
    """The float view of :func:`quantile_quantize`, without making the codes.

    Arguments are those of :func:`quantile_quantize`; the result is written to ``out`` (which may be x) if given.
    """
    _check_rounding(rounding, centres)
    if out is not None:
        if out.shape != x.shape or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(f"out must be a contiguous float32 tensor of shape {tuple(x.shape)}")
        flat = _prepare(x)
        if ops(flat) is native and _resolve(method, flat.numel(), centres) == "key16" and rounding == "nearest":
            native.table_apply(flat, _key_table(flat, check_bits(bits), centres=centres), out=out)
            return out
        return out.copy_(quantile_round(x, bits, method, rounding, generator, wait=wait, centres=centres))
    flat = _prepare(x)
    if flat.numel() > 2 ** check_bits(bits) and rounding == "nearest":
        if _resolve(method, flat.numel(), centres) == "key16":
            rounded: Tensor = ops(flat).table_apply(flat, _key_table(flat, bits, wait, centres))
        else:
            exact = _exact_centres(flat, bits, wait)
            rounded = exact[_nearest_codes(flat, exact)]
        return rounded.view(x.shape)
    return quantile_quantize(x, bits, method, rounding, generator, wait, centres).dequantize()
