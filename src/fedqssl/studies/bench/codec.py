"""Speed of quantizing and packing against memcpy, and the error of the fast quantile quantizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedqssl.quant import quantile_round, quantize_pack, unpack_dequantize
from fedqssl.studies.bench.records import Record, Row
from fedqssl.studies.bench.timing import Timing, interleaved

EVEN_BITS = tuple(range(2, 17, 2))


def sort_quantile_round(x: Tensor, bits: int) -> Tensor:
    """The quantile quantizer as usually written: sort, read off 2^bits centres, bucketize to the nearest."""
    ordered = x.flatten().sort().values
    position = torch.linspace(0, 1, 2**bits, dtype=torch.float64) * (ordered.numel() - 1)
    centres = ordered[position.round().long()]
    middles = (centres[1:] + centres[:-1]) / 2
    return centres[torch.bucketize(x, middles)]


def run(
    elements: int = 4_000_000,
    quantile_bits: Sequence[int] = (6, 8, 10, 14),
    pack_bits: Sequence[int] = EVEN_BITS,
    repeats: int = 7,
    threads: int = 1,
) -> Record:
    """Measure the quantile quantizer on normal floats, pack and unpack on uniform floats.

    ``vs_memcpy`` is memcpy's time over ours for the same float32 tensor (1.0: as fast as a copy), ``vs_sort``
    the sort's time over ours, ``mse_ratio`` our squared error over that of the exact quantile quantizer.
    """
    if elements < 1:
        raise ValueError(f"elements must be at least 1, not {elements}")
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(elements, generator=generator)
    results = [
        *_quantile_rows(normal, quantile_bits, repeats, threads),
        *_pack_rows(torch.rand(elements, generator=generator), pack_bits, repeats, threads),
    ]
    settings = {"elements": elements, "repeats": repeats, "threads": threads}
    return Record("codec", results, (), settings)


def _memcpy(source: Tensor) -> Callable[[], object]:
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _row(operation: str, bits: int, timing: Timing, elements: int, **more: float | None) -> Row:
    speed = {"vs_memcpy": 1 / timing.ratio, "gb_per_s": 4 * elements / 1e9 / timing.seconds}
    unknown = dict.fromkeys(("vs_sort", "relative_mse", "mse_ratio"))
    return {"operation": operation, "bits": bits, **speed, **unknown, **more}


def _quantile_rows(x: Tensor, bits: Sequence[int], repeats: int, threads: int) -> list[Row]:
    rows: list[Row] = []
    target = torch.empty_like(x)  # as for memcpy: the allocator is not what is measured
    for s in bits:
        work: dict[str, Callable[[], object]] = {
            "memcpy": _memcpy(x),
            "ours": lambda s=s: quantile_round(x, s, out=target),  # type: ignore[misc]
            "sort": lambda s=s: sort_quantile_round(x, s),  # type: ignore[misc]
        }
        timings = interleaved(work, "memcpy", repeats=repeats, warmup=1, threads=threads)
        error = (quantile_round(x, s) - x).square().mean() / x.square().mean()
        exact = (quantile_round(x, s, method="exact") - x).square().mean() / x.square().mean()
        ratio = float(error / exact) if exact > 0 else None
        sort = timings["sort"].seconds / timings["ours"].seconds
        more = {"vs_sort": sort, "relative_mse": float(error), "mse_ratio": ratio}
        rows.append(_row("quantile", s, timings["ours"], x.numel(), **more))
    return rows


def _pack_rows(x: Tensor, bits: Sequence[int], repeats: int, threads: int) -> list[Row]:
    work: dict[str, Callable[[], object]] = {"memcpy": _memcpy(x)}
    for s in bits:
        packed = quantize_pack(x, s)
        work[f"pack-{s}"] = lambda s=s: quantize_pack(x, s)  # type: ignore[misc]
        work[f"unpack-{s}"] = lambda s=s, p=packed: unpack_dequantize(p, s, x.shape)  # type: ignore[misc]
    timings = interleaved(work, "memcpy", repeats=repeats, threads=threads)
    return [_row(name, s, timings[f"{name}-{s}"], x.numel()) for name in ("pack", "unpack") for s in bits]
