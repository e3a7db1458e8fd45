"""CPU time of one training step against fp32, all variants interleaved in one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedqssl.studies.bench.peers import Variant, training_step
from fedqssl.studies.bench.records import Record, Row, available
from fedqssl.studies.bench.timing import interleaved, torch_threads

FP32 = Variant("fp32", 32)
PEERS = (
    *(Variant(family, bits) for family in ("brevitas", "torchao-qat") for bits in (4, 8)),
    Variant("brevitas-first-300-steps", 4),
)


def candidates(bits: Sequence[int], peers: bool) -> list[Variant]:
    """fp32, ours at every bitwidth, then the peers."""
    return [FP32, *(Variant("fedqssl", s) for s in bits), *(PEERS if peers else ())]


def batch_settings(width: int, images: int) -> dict[str, str | int]:
    """What every measurement of a training step records about its network and batch."""
    return {"model": "resnet18+projector", "width": width, "images": images, "views": 2}


def run(
    width: int = 16,
    images: int = 256,
    bits: Sequence[int] = (2, 4, 6, 8, 12),
    repeats: int = 7,
    threads: int = 1,
    peers: bool = True,
) -> Record:
    """Measure a SimCLR step (forward, NT-Xent, backward, update) of ResNet-18 + projector.

    Each result's ``cpu_ratio`` is variant / fp32, with fp32 in channels_last under plain SGD. ``user_ratio`` leaves
    out time in the kernel: activations above 32 MiB (256 images, width 16) are mapped and faulted in again at
    every use by glibc's default malloc, which can double what a peer with many temporaries costs.
    """
    variants = {variant.name: variant for variant in candidates(bits, peers)}
    with torch_threads(threads):
        steps, skipped = available({n: partial(training_step, v, width, images) for n, v in variants.items()})
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
    settings = {**batch_settings(width, images), "repeats": repeats, "threads": threads}
    return Record("step", results, skipped, {**settings, "reference": "fp32, channels_last, SGD without momentum"})
