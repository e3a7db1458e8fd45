"""Memory of one training step against fp32: peak over the steady state, and bytes saved for backward.

One process per variant, with a fixed mmap threshold so that freed buffers leave the resident set at once. The
process is this module: ``python -m fedqssl.studies.bench.memory FAMILY BITS WIDTH IMAGES THREADS DEVICE`` prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedqssl.studies.bench.records import PeerUnavailableError, Record, Row, Skipped

if TYPE_CHECKING:
    import torch

    from fedqssl.studies.bench.peers import TrainingStep, Variant

_SKIPPED = 3  # exit code of a process whose peer is not available


def run(
    width: int = 16,
    images: int = 256,
    bits: Sequence[int] = (4,),
    threads: int = 1,
    peers: bool = True,
    device: str = "cpu",
) -> Record:
    """Measure every variant in a separate process; the ``*_ratio`` columns are fp32 / variant.

    ``steady_bytes`` is what the process holds between steps on top of the imported libraries (weights, data,
    caches, kept buffers), ``peak_bytes`` what a step adds, ``total_ratio`` compares sums. On a GPU both are what torch's
    allocator has given out there.
    """
    from fedqssl.accelerators import name_of, resolve
    from fedqssl.studies.bench.step import batch_settings, candidates

    where = resolve(device)
    rows: list[dict[str, str | int | float]] = []
    skipped: list[Skipped] = []
    for variant in candidates(bits, peers, where.type == "cuda"):
        result = _measure_apart(variant, width, images, threads, device)
        if isinstance(result, Skipped):
            skipped.append(result)
        else:
            rows.append({"variant": variant.family, "bits": variant.bits, **result})
    results: list[Row] = [{**row, **_ratios(rows[0], row)} for row in rows]
    names = {} if where.type == "cpu" else {"device": str(where), "gpu": name_of(where)}
    return Record("memory", results, skipped, {**batch_settings(width, images), "threads": threads, **names})


def _ratios(fp32: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, float]:
    return {
        **{f"{what}_ratio": fp32[f"{what}_bytes"] / max(row[f"{what}_bytes"], 1) for what in ("peak", "saved")},
        "total_ratio": (fp32["steady_bytes"] + fp32["peak_bytes"]) / (row["steady_bytes"] + row["peak_bytes"]),
    }


def _measure_apart(variant: Variant, width: int, images: int, threads: int, device: str) -> dict[str, int] | Skipped:
    done = measuring_process("memory", variant.family, variant.bits, width, images, threads, device)
    if done.returncode == _SKIPPED:
        return Skipped(variant.name, done.stdout.strip())
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise OSError(f"memory of {variant.name}: the measuring process ended with {done.returncode}: {last}")
    result: dict[str, int] = json.loads(done.stdout)
    return result


def measuring_process(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a benchmark's module in a separate process, whose freed buffers leave the resident set at once."""
    command = [sys.executable, "-m", f"fedqssl.studies.bench.{module}", *map(str, arguments)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def status_bytes(field: str) -> int:
    """A field of /proc/self/status (VmRSS, VmHWM) in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}; this benchmark needs Linux")


def steady_and_peak(step: Callable[[], object], warm: int = 2) -> tuple[int, int]:
    """Resident size between steps, and how much one step adds."""
    for _ in range(warm):
        step()
    gc.collect()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM to VmRSS
    step()
    return before, status_bytes("VmHWM") - before


def allocated_on_gpu(step: Callable[[], object], device: torch.device, warm: int = 2) -> tuple[int, int]:
    """Bytes that torch has given out on a GPU between steps, and how much one step adds at its peak."""
    import torch

    for _ in range(warm):
        step()
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return before, torch.cuda.max_memory_allocated(device) - before


def saved_bytes(step: TrainingStep) -> int:
    """Bytes that one forward pass keeps for backward: each storage once, without parameters and buffers."""
    import torch

    own = {t.untyped_storage().data_ptr() for t in (*step.model.parameters(), *step.model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.loss()  # holds the graph, so no address is reused while we count
    del loss
    return sum(kept.values())


def _measure(arguments: Sequence[str]) -> int:
    import torch

    from fedqssl.accelerators import resolve
    from fedqssl.ssl import simclr  # noqa: F401  (libraries are not part of what a variant holds)
    from fedqssl.studies.bench.peers import Variant, training_step

    bits, width, images, threads = map(int, arguments[1:5])
    device = resolve(arguments[5])
    torch.set_num_threads(threads)
    empty = status_bytes("VmRSS") if device.type == "cpu" else 0
    try:
        step = training_step(Variant(arguments[0], bits), width, images, device=device)
    except PeerUnavailableError as error:
        print(error)
        return _SKIPPED
    steady, peak = steady_and_peak(step) if device.type == "cpu" else allocated_on_gpu(step, device)
    saved = saved_bytes(step)
    print(json.dumps({"steady_bytes": steady - empty, "peak_bytes": peak, "saved_bytes": saved}))
    return 0


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1:]))
