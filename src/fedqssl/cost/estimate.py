"""Time of a run on this machine, from measured steps."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedqssl.cost.bitwidth import Bitwidth
from fedqssl.cost.ledger import Ledger
from fedqssl.cost.trace import FLOAT

FORWARD_SHARE = 1 / 3
"""Of a step's time, a pass without update: one of the three products of each layer."""


@dataclass(frozen=True)
class Estimate:
    """Seconds on this machine, evaluation and checkpoints not included.

    Args:
        clients: local training of each client in a round.
        client_phase: all clients of a round, over the workers.
        server_phase: de-quantization and re-quantization, over the workers.
        rounds: their number.
        workers: processes counted on: ``workers``, but no more than there are cores for.
        scaled: whether a full batch was extrapolated from a smaller one.
    """

    clients: Mapping[str, float]
    client_phase: float
    server_phase: float
    rounds: int
    workers: int
    scaled: bool

    @property
    def round(self) -> float:
        """Seconds of a round."""
        return self.client_phase + self.server_phase

    @property
    def total(self) -> float:
        """Seconds of all rounds."""
        return self.round * self.rounds


def makespan(jobs: Iterable[float], workers: int) -> float:
    """When the last of the jobs ends if each goes to the first free worker, longest first."""
    ends = [0.0] * max(workers, 1)
    for job in sorted(jobs, reverse=True):
        heapq.heapreplace(ends, ends[0] + job)
    return max(ends)


def _epoch(width: Bitwidth, images: int) -> float:
    if width.measured is None:
        raise ValueError("the ledger holds no measured steps; make it with measure_seconds=20, say")
    return width.training.steps(images) * width.measured.seconds(width.training.batch(images))


def estimate(ledger: Ledger, cores: int | None = None) -> Estimate:
    """Time of a run: measured seconds per step times steps, spread over workers as the engine does.

    With ``fraction`` below 1 the client phase is scaled by the share of clients that take part.
    """
    config, work, widths, sizes = ledger.config, ledger.work, ledger.bitwidths, ledger.sizes
    available = max((cores or os.cpu_count() or 1) // config.threads, 1)
    workers = min(config.workers, available, max(len(ledger.clients), 1))
    share = work.participants / max(len(ledger.clients), 1)
    clients = {
        n: _epoch(widths[c.bits], c.images) * config.local_epochs if work.clients_train else 0.0
        for n, c in ledger.clients.items()
    }
    server = 0.0
    if work.dequantize_epochs is not None:
        epochs = work.dequantize_epochs or FORWARD_SHARE
        server += makespan([_epoch(widths[FLOAT], sizes.buffer) * epochs] * work.participants, workers)
    distinct = {c.bits for c in ledger.clients.values()} - {FLOAT}
    server += makespan([_epoch(widths[b], sizes.buffer) * work.requantize_epochs for b in distinct], workers)
    if work.buffer_epochs:
        server += _epoch(widths[FLOAT], sizes.buffer) * work.buffer_epochs
    if work.union_epochs:
        server += _epoch(widths[FLOAT], sum(sizes.clients.values())) * work.union_epochs
    scaled = any(w.measured is not None and w.measured.images < config.batch_size for w in widths.values())
    phase = makespan(clients.values(), workers) * share
    return Estimate(clients, phase, server, config.rounds, workers, scaled)


__all__ = ["Estimate", "estimate", "makespan"]
