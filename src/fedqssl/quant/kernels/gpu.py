"""Which kernels a GPU gets: Triton's where a probe on that GPU finds them right, else plain torch.

The kernels were written without a GPU. So each process compares them once, on the GPU itself, with plain torch on the CPU, and
``fedqssl doctor`` shows what came out. Nothing is imported before the first tensor on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from fedqssl.quant.kernels import reference
from fedqssl.quant.kernels.types import Hat, Norm, NormAct

_N, _CHANNELS = 5 * 7 * 120 + 3 * 8, 8  # several programs, the last one not full


@lru_cache(maxsize=1)
def find() -> tuple[ModuleType | None, str]:
    """The backend, if Triton can be imported, and its version or why not."""
    if importlib.util.find_spec("triton") is None:
        return None, "triton is not installed (pip install 'fedqssl[gpu]')"
    try:
        from fedqssl.quant.kernels import triton_kernels
    except (ImportError, RuntimeError, OSError) as error:
        return None, f"triton does not load: {' '.join(str(error).split())[:120]}"
    import triton

    return triton_kernels, f"triton {triton.__version__}"


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _cases(x: Tensor, draws: Tensor) -> dict[str, Callable[[ModuleType, torch.device], list[Tensor | None]]]:
    """Calls of every kernel on the same numbers, by name."""
    norm = [torch.linspace(a, b, _CHANNELS) for a, b in ((0.5, 1.5), (-0.2, 0.3), (0.8, 1.2), (-0.1, 0.1))]

    def codes(k: ModuleType, d: torch.device) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for bits in (1, 6, 11):
            packed = k.quantize_pack(x.to(d), bits, float(2**bits - 1))
            back = k.unpack(packed, bits, _N)
            table = torch.arange(2**bits, dtype=torch.float32).to(d)
            found += [packed, back.to(torch.int32), k.pack(back, bits), k.unpack_affine(packed, bits, _N, 0.3, -0.7)]
            found += [k.unpack_table(packed, bits, _N, table)]
            found += [k.round_pack(x.double().to(d), bits, 0.7, 1e-4, u) for u in (None, draws.to(d))]
            move = (packed, bits, table, 0.1)
            found += [k.step_target(packed, bits, _N, table.double(), *move)]
        return found

    def quantiles(k: ModuleType, d: torch.device) -> list[Tensor | None]:
        hist, low, high = k.key_histogram(x.to(d))
        table = k.quantile_table(hist, _N, 10, low, high)
        return [hist.to(torch.int64), k.table_apply(x.to(d), table), k.code_apply(x.to(d), table).to(torch.int32)]

    def norms(k: ModuleType, d: torch.device) -> list[Tensor | None]:
        y = x.view(-1, _CHANNELS).to(d)
        moved = [c.to(d) for c in norm]
        act = NormAct(4, 15 / 4, 4 / 15, 4, 0.3, True, True, True)
        made = k.norm_act(y, Norm(*moved), act)
        out = torch.empty_like(y)
        k.norm_backward_apply(y, made.mask, Hat(made.hat, 4, 0.3), (moved[0], moved[1], moved[2]), 6, out)
        sums = k.norm_backward_sums(y, made.mask, Hat(made.hat, 4, 0.3), None)
        return [made.values, made.codes, made.packed, made.mask, made.hat, out, *sums, *k.norm_stats(y)]

    return {"codes": codes, "quantiles": quantiles, "norms": norms}


def disagreements(backend: ModuleType, device: torch.device) -> list[str]:
    """The groups of kernels whose results on this device are not those of plain torch on the CPU."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(_N, generator=draws)
    x[::7] = 0.0
    uniform = torch.rand(_N, dtype=torch.float64, generator=draws)
    wrong = []
    for name, case in _cases(x, uniform).items():
        pairs = zip(case(backend, device), case(reference, torch.device("cpu")), strict=True)
        same = (a is None or b is None or torch.allclose(a.cpu().double(), b.double(), 1e-6, 1e-6) for a, b in pairs)
        if not all(same):
            wrong.append(name)
    return wrong


@lru_cache(maxsize=16)
def probe(device: torch.device) -> tuple[ModuleType, str]:
    """The kernels for tensors on a GPU, and why."""
    backend, detail = find()
    if backend is None:
        return reference, f"plain torch: {detail}"
    try:
        wrong = disagreements(backend, device)
    except Exception as error:  # whatever a compiler or a driver raises: plain torch still works
        return reference, f"plain torch: {detail} failed on {device} ({' '.join(str(error).split())[:120]})"
    if wrong:
        return reference, f"plain torch: {detail} gives other results on {device} ({', '.join(wrong)})"
    return backend, f"{detail}, probed on {device}"


__all__ = ["disagreements", "find", "interpreting", "probe"]
