"""CPU time of one training step against fp32, all variants interleaved in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fedqssl.accelerators import name_of, resolve, synchronize
from fedqssl.quant.kernels import ops_on
from fedqssl.studies.bench.peers import Variant, training_step
from fedqssl.studies.bench.records import Record, Row, available
from fedqssl.studies.bench.timing import Timing, interleaved, torch_threads

FP32 = Variant("fp32", 32)
PEERS = (
    *(Variant(family, bits) for family in ("brevitas", "torchao-qat") for bits in (4, 8)),
    Variant("brevitas-first-300-steps", 4),
)


def candidates(bits: Sequence[int], peers: bool, on_gpu: bool = False) -> list[Variant]:
    """fp32, on a GPU also in mixed precision, ours at every bitwidth, then the peers."""
    amp = [Variant("fp32-amp", 16)] if on_gpu else []
    return [FP32, *amp, *(Variant("fedqssl", s) for s in bits), *(PEERS if peers else ())]


def batch_settings(width: int, images: int, model: str = "resnet18", size: int = 32) -> dict[str, str | int]:
    """What every measurement of a training step records about its network and batch."""
    return {"model": f"{model}+projector", "width": width, "images": images, "views": 2, "size": size}


def run(
    width: int = 16,
    images: int = 256,
    bits: Sequence[int] = (2, 4, 6, 8, 12),
    repeats: int = 7,
    threads: int = 1,
    peers: bool = True,
    device: str = "cpu",
    model: str = "resnet18",
    size: int = 32,
) -> Record:
    """Measure a SimCLR step (forward, NT-Xent, backward, update) of a backbone + projector; peers know ResNet-18 only.

    Each result's ``cpu_ratio`` is variant / fp32, with fp32 in channels_last under plain SGD. ``user_ratio`` leaves
    out time in the kernel: activations above 32 MiB (256 images, width 16) are mapped and faulted in again at
    every use by glibc's default malloc, which can double what a peer with many temporaries costs.

    On a GPU the clock is wall time with everything done that was asked for, beside fp32 and its mixed precision (AMP, bfloat16).
    """
    where = resolve(device)
    network: dict[str, Any] = {"model": model, "size": size}
    variants = {
        variant.name: variant for variant in candidates(bits, peers and model == "resnet18", where.type == "cuda")
    }
    with torch_threads(threads):
        made = {n: partial(training_step, v, width, images, device=where, **network) for n, v in variants.items()}
        steps, skipped = available(made)
    settings = {**batch_settings(width, images, **network), "repeats": repeats, "threads": threads}
    settings |= {"reference": "fp32, channels_last, SGD without momentum"}
    if where.type == "cuda":
        timings = interleaved(steps, FP32.name, repeats=repeats, threads=threads, clock=partial(_wall, where))
        names = {"device": str(where), "gpu": name_of(where), "gpu_kernels": ops_on(where).NAME}
        return Record("step", [_gpu_row(variants[n], t) for n, t in timings.items()], skipped, {**settings, **names})
    timings = interleaved(steps, FP32.name, repeats=repeats, threads=threads)
    reference = timings[FP32.name]
    results: list[Row] = [
        {
            "variant": variants[name].family,
            "bits": variants[name].bits,
            "cpu_ratio": timing.ratio,
            "spread": timing.spread,
            "cpu_seconds": timing.seconds,
            "system_seconds": timing.system,
            "user_ratio": (timing.seconds - timing.system) / (reference.seconds - reference.system),
        }
        for name, timing in timings.items()
    ]
    return Record("step", results, skipped, settings)


def _wall(device: torch.device) -> float:
    """Wall time, once the GPU has done what it was given."""
    synchronize(device)
    return time.perf_counter()


def _gpu_row(variant: Variant, timing: Timing) -> Row:
    return {
        "variant": variant.family,
        "bits": variant.bits,
        "wall_ratio": timing.ratio,
        "spread": timing.spread,
        "wall_seconds": timing.seconds,
    }
