"""Interleaved CPU-time measurement: every repeat runs all candidates, so drift affects them equally."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The cost of one candidate.

    Attributes:
        seconds: median CPU seconds of a run.
        ratio: median over the repeats of (this candidate / the reference in the same repeat).
        spread: distance between the quartiles of those ratios.
        system: median seconds of ``seconds`` spent in the kernel, nearly all of it page faults of fresh buffers.
            That share depends on malloc's thresholds and on buffer sizes, not on arithmetic: check it before comparing.
    """

    seconds: float
    ratio: float
    spread: float
    system: float


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run a block with ``count`` torch threads and restore the former number."""
    import torch

    if count < 1:
        raise ValueError(f"threads must be at least 1, not {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(
    work: Mapping[str, Callable[[], object]],
    reference: str,
    repeats: int = 7,
    warmup: int = 2,
    threads: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Timing]:
    """Time every callable of ``work`` round-robin and compare each with ``reference``.

    Args:
        work: name -> callable; its result is ignored.
        reference: the name that the ratios refer to.
        repeats: number of timed rounds.
        warmup: untimed runs of each callable before the first round.
        threads: torch threads; one by default, so that CPU time is work and not waiting.
        clock: seconds; CPU time of the process unless a test passes its own.
    """
    if reference not in work:
        raise ValueError(f"reference {reference!r} is not among the candidates: {', '.join(work)}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    samples: dict[str, list[float]] = {name: [] for name in work}
    kernel: dict[str, list[float]] = {name: [] for name in work}
    with torch_threads(threads):
        for run in work.values():
            for _ in range(warmup):
                run()
        for _ in range(repeats):
            for name, run in work.items():
                start, start_kernel = clock(), _system_seconds()
                run()
                samples[name].append(clock() - start)
                kernel[name].append(_system_seconds() - start_kernel)
    return {name: _summary(samples[name], samples[reference], kernel[name]) for name in work}


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


def _summary(own: list[float], reference: list[float], kernel: list[float]) -> Timing:
    tick = 1e-9  # a coarse clock may report zero for a very short run
    ratios = [a / max(b, tick) for a, b in zip(own, reference, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios
    spread = quartiles[-1] - quartiles[0]
    return Timing(statistics.median(own), statistics.median(ratios), spread, statistics.median(kernel))
