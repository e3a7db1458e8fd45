"""The ledger: what a configuration costs each client and the server, per round and in total; and the time on this machine."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedqssl import accelerators
from fedqssl.config import RunConfig
from fedqssl.cost.bitwidth import VIEWS, Bitwidth, Say, silent, study
from fedqssl.cost.formulas import BitOperations, Memory
from fedqssl.cost.sizes import Sizes, client_sizes
from fedqssl.cost.trace import FLOAT
from fedqssl.federated.algorithms import get_algorithm
from fedqssl.federated.algorithms.work import RoundWork
from fedqssl.quant.packing import packed_size

FORWARD_SHARE = 1 / 3
"""Share of a step's time that a pass without update takes: one of the three products of each layer."""


@dataclass(frozen=True)
class ClientCost:
    """One client; everything but ``memory`` is per round that it takes part in.

    Args:
        name: the client's name.
        bits: s_k.
        images: its training images.
        batch: images in one of its steps.
        steps: training steps.
        operations: bit operations.
        memory: of a step.
        bytes_down: length of the model it receives.
        bytes_up: length of the model it sends.
        rounds: expected number of rounds in which it takes part.
    """

    name: str
    bits: int
    images: int
    batch: int
    steps: int
    operations: BitOperations
    memory: Memory
    bytes_down: int
    bytes_up: int
    rounds: float


@dataclass(frozen=True)
class ServerCost:
    """The server's bit operations per round.

    Args:
        dequantize: full-precision fine-tuning of every received model.
        passes: forward passes of every received model in its own bits; an expected value if only a fraction takes part.
        aggregate: the weighted average, a 32 * 32 multiply-accumulate per parameter and client.
        requantize: low-bit fine-tuning, by bitwidth (32 needs none).
        train: full-precision training of one model.
        steps: training steps that follow each other, models trained side by side counted once.
        bytes_in: received.
        bytes_out: sent.
    """

    dequantize: int
    passes: int
    aggregate: int
    requantize: Mapping[int, int]
    train: int
    steps: int
    bytes_in: int
    bytes_out: int

    @property
    def total(self) -> int:
        """All bit operations of a round."""
        return self.dequantize + self.passes + self.aggregate + sum(self.requantize.values()) + self.train


@dataclass(frozen=True)
class Totals:
    """Sums over clients; expected values where only a fraction of the clients takes part."""

    operations: BitOperations
    bytes_down: int
    bytes_up: int
    server_operations: int

    def __mul__(self, times: int) -> Totals:
        ops = self.operations * times
        return Totals(ops, self.bytes_down * times, self.bytes_up * times, self.server_operations * times)


@dataclass(frozen=True)
class LedgerCheck:
    """Formula and measurement side by side: memory of a step at the batch that was measured, packed weights on the wire."""

    images: int
    formula: Memory
    measured: Memory
    packed_formula: int
    packed_measured: int


@dataclass(frozen=True, eq=False)
class Ledger:
    """What a run costs; see :func:`ledger`.

    Args:
        config: the run's configuration.
        sizes: images by client.
        work: one round's work.
        clients: by name, in each client's own bits.
        full: the same clients with the same data at 32 bits: what ``clients`` is compared with.
        server: per round.
        bitwidths: by bits, 32 included: containers, formulas, measurements.
    """

    config: RunConfig
    sizes: Sizes
    work: RoundWork
    clients: Mapping[str, ClientCost]
    full: Mapping[str, ClientCost]
    server: ServerCost
    bitwidths: Mapping[int, Bitwidth]

    def per_round(self, full: bool = False) -> Totals:
        """One round, summed over the clients that take part; ``full``: at 32 bits (the server's work unchanged)."""
        of = list((self.full if full else self.clients).values())
        share = self.work.participants / max(len(of), 1)
        summed = sum((c.operations for c in of), BitOperations())
        operations = BitOperations(*(round(share * x) for x in (summed.forward, summed.backward, summed.objective)))
        down, up = (round(share * sum(b)) for b in ((c.bytes_down for c in of), (c.bytes_up for c in of)))
        return Totals(operations, down, up, self.server.total)

    def handed_out(self, full: bool = False) -> int:
        """Bytes of the models that all clients receive after the last round."""
        of = (self.full if full else self.clients).values()
        return sum(self.bitwidths[c.bits].wire.total for c in of) if self.work.hands_out else 0

    def total(self, full: bool = False) -> Totals:
        """All rounds, and the models handed out after them."""
        rounds = self.per_round(full) * self.config.rounds
        return replace(rounds, bytes_down=rounds.bytes_down + self.handed_out(full))

    def check(self, bits: int) -> LedgerCheck | None:
        """Formula beside measurement; None if these bits were not measured."""
        found = self.bitwidths[bits]
        if found.measured is None:
            return None
        images = found.measured.images
        packed = sum(packed_size(w.count, w.bits) for w in found.trace.weights)
        return LedgerCheck(images, found.memory(images), found.measured.memory, packed, found.wire.packed)

    def to_json(self) -> dict[str, Any]:
        """Plain values only: settings, clients, full, server, bitwidths, handed_out, per_round, total."""
        return {
            "settings": self.config.model_dump(mode="json"),
            "assumed": self.sizes.note or None,
            "buffer": self.sizes.buffer,
            "work": asdict(self.work),
            "clients": {name: _client_json(c) for name, c in self.clients.items()},
            "full": {name: _client_json(c) for name, c in self.full.items()},
            "server": {**asdict(self.server), "total": self.server.total},
            "bitwidths": {str(b): self._bitwidth_json(b) for b in self.bitwidths},
            "handed_out": self.handed_out(),
            "per_round": asdict(self.per_round()),
            "total": asdict(self.total()),
            "total_full": asdict(self.total(full=True)),
        }

    def _bitwidth_json(self, bits: int) -> dict[str, Any]:
        found = self.bitwidths[bits]
        images, check = self.config.batch_size, self.check(bits)
        seconds = None if found.measured is None else found.measured.seconds(images)
        return {
            "wire": {**asdict(found.wire), "total": found.wire.total},
            "step": {
                "images": images,
                "operations": asdict(found.operations(images)),
                "memory": _memory_json(found.memory(images)),
                "seconds": seconds,
            },
            "check": None if check is None else asdict(check),
        }

    def write(self, path: Path, **more: Any) -> None:
        """Write :meth:`to_json` and ``more`` to a file, making its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json() | more, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _memory_json(memory: Memory) -> dict[str, int]:
    return {**asdict(memory), "total": memory.total, "peak": memory.peak}


def _client_json(client: ClientCost) -> dict[str, Any]:
    return {**asdict(client), "memory": _memory_json(client.memory)}


def round_work(config: RunConfig, clients: int) -> RoundWork:
    """The work of these clients and the server in a round of the configured algorithm."""
    return get_algorithm(config.algorithm).round_work(config, config.participants(clients))


def client_cost(config: RunConfig, sizes: Sizes, name: str, width: Bitwidth) -> ClientCost:
    """The cost of one client in the bits of ``width``."""
    images, work = sizes.clients[name], round_work(config, len(sizes.clients))
    task, steps = width.task, 0
    if work.clients_train:
        steps = (config.local_epochs or 0) * task.steps(images) + (config.local_steps or 0)
    return ClientCost(
        name,
        width.bits,
        images,
        task.batch(images),
        steps=steps,
        operations=width.training(images, steps),
        memory=width.memory(task.batch(images)),
        bytes_down=width.wire.total if work.traffic else 0,
        bytes_up=width.upload if work.traffic else 0,
        rounds=config.rounds * work.participants / len(sizes.clients),
    )


def _server(clients: Mapping[str, ClientCost], sizes: Sizes, of: Mapping[int, Bitwidth], work: RoundWork) -> ServerCost:
    full, each, everyone = of[FLOAT], 0, sum(sizes.clients.values())
    steps = work.server_steps(full.task, sizes.buffer, everyone)
    if steps.dequantize is not None:
        count, batch = full.task.steps(sizes.buffer), full.task.batch(sizes.buffer)
        once = full.training(sizes.buffer, count).objective
        alone = full.forward(VIEWS * batch) * count + once // 3  # a pass without updates: one of every three products
        each = full.training(sizes.buffer, steps.dequantize).total or alone
    distinct = sorted({c.bits for c in clients.values()} - {FLOAT})
    train = full.training(sizes.buffer, steps.buffer).total + full.training(everyone, steps.union).total
    parameters = sum(w.count for w in full.trace.weights) + full.trace.floats
    share = work.participants / max(len(clients), 1)
    return ServerCost(
        dequantize=each * work.participants,
        passes=round(share * work.passes * sum(of[c.bits].forward(sizes.buffer) for c in clients.values())),
        aggregate=parameters * work.participants * FLOAT * FLOAT if work.averages else 0,
        requantize={b: of[b].training(sizes.buffer, steps.requantize).total for b in distinct},
        train=train,
        steps=(steps.dequantize or 0) + steps.buffer + steps.union + (steps.requantize if distinct else 0),
        bytes_in=round(share * sum(c.bytes_up for c in clients.values())),
        bytes_out=round(share * sum(c.bytes_down for c in clients.values())),
    )


def ledger(
    config: RunConfig, sizes: Sizes | None = None, *, measure_seconds: float | None = None, say: Say = silent
) -> Ledger:
    """The cost of a run, without running it.

    Args:
        config: the run's settings; its algorithm determines what is trained and sent, and the work.
        sizes: images by client; by default counted from the data, or assumed (:func:`client_sizes`).
        measure_seconds: also run a step per bitwidth, taking about this long in all; without it formulas only.
        say: receives lines of progress.

    Example:
        >>> from fedqssl.config import load_config
        >>> found = ledger(load_config("smoke"))
        >>> found.clients["client-00"].operations.total < found.full["client-00"].operations.total
        True
    """
    sizes = sizes if sizes is not None else client_sizes(config)
    bits = config.bits_for(list(sizes.clients))
    wanted = sorted({*bits.values(), FLOAT})
    each = None if measure_seconds is None else measure_seconds / len(wanted)
    widths = {b: study(config, sizes, b, measure_seconds=each, say=say, warm=b == wanted[0]) for b in wanted}
    clients = {name: client_cost(config, sizes, name, widths[b]) for name, b in bits.items()}
    full = {name: client_cost(config, sizes, name, widths[FLOAT]) for name in bits}
    work = round_work(config, len(bits))
    return Ledger(config, sizes, work, clients, full, _server(clients, sizes, widths, work), widths)


@dataclass(frozen=True)
class CostEstimate:
    """Seconds on this machine, evaluation and checkpoints not included.

    Args:
        clients: local training of each client in a round.
        client_phase: all clients of a round, over the workers.
        server_phase: de-quantization and re-quantization, over the workers.
        rounds: their number.
        workers: number of processes assumed: ``workers``, but no more than there are cores for; on GPUs one for each.
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
    """The time until all jobs are done if each goes to the first free worker, longest first."""
    ends = [0.0] * max(workers, 1)
    for job in sorted(jobs, reverse=True):
        heapq.heapreplace(ends, ends[0] + job)
    return max(ends)


def estimate(ledger: Ledger, cores: int | None = None) -> CostEstimate:
    """Time of a run: measured seconds per step times steps, spread over workers as the engine does.

    With ``fraction`` below 1 the client phase is scaled by the share of clients that take part.
    """
    config, work, widths, buffer = ledger.config, ledger.work, ledger.bitwidths, ledger.sizes.buffer
    full, count = widths[FLOAT], max(len(ledger.clients), 1)
    on_cpu = min(config.workers, max((cores or os.cpu_count() or 1) // config.threads, 1))
    workers = min(accelerators.workers(config.device, on_cpu, 1), count)  # processes that share a GPU share its time
    clients = {n: widths[c.bits].training_seconds(c.images, c.steps) for n, c in ledger.clients.items()}
    everyone = sum(ledger.sizes.clients.values())
    server, steps = 0.0, work.server_steps(full.task, buffer, everyone)
    if steps.dequantize is not None:
        each = full.training_seconds(buffer, steps.dequantize or full.task.steps(buffer) * FORWARD_SHARE)
        server += makespan([each] * work.participants, workers)
    passes = full.task.steps(buffer) * FORWARD_SHARE / VIEWS * work.passes
    received = (widths[c.bits].training_seconds(buffer, passes) for c in ledger.clients.values())
    server += makespan(received, workers) * work.participants / count
    requantize = (widths[b].training_seconds(buffer, steps.requantize) for b in ledger.server.requantize)
    server += makespan(requantize, workers) + full.training_seconds(buffer, steps.buffer)
    server += full.training_seconds(everyone, steps.union)
    scaled = any(w.measured is not None and w.measured.images < config.batch_size for w in widths.values())
    phase = makespan(clients.values(), workers) * work.participants / count
    return CostEstimate(clients, phase, server, config.rounds, workers, scaled)


__all__ = [
    "ClientCost",
    "CostEstimate",
    "Ledger",
    "LedgerCheck",
    "ServerCost",
    "Totals",
    "client_cost",
    "estimate",
    "ledger",
    "makespan",
    "round_work",
]
