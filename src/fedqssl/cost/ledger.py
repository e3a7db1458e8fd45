"""The ledger: what a configuration costs each client and the server, per round and in total."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig
from fedqssl.cost.amounts import BitOperations, Memory
from fedqssl.cost.bitwidth import Bitwidth, Upload, study
from fedqssl.cost.measure import Say, silent
from fedqssl.cost.sizes import Sizes, client_sizes
from fedqssl.cost.trace import FLOAT
from fedqssl.cost.training import Training, training_of
from fedqssl.cost.work import RoundWork, round_work
from fedqssl.quant.packing import packed_size


@dataclass(frozen=True)
class ClientCost:
    """One client; everything but ``memory`` is per round that it takes part in.

    Args:
        name: the client's.
        bits: s_k.
        images: its training images.
        batch: images in one of its steps.
        steps: training steps.
        operations: bit operations.
        memory: of a step.
        bytes_down: length of the model it receives.
        bytes_up: length of the model it sends.
        rounds: in which it takes part, on average.
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
        aggregate: the weighted average, a 32 * 32 multiply-accumulate per parameter and client.
        requantize: low-bit fine-tuning, by bitwidth (32 needs none).
        train: full-precision training that needs no client (controls).
        bytes_in: received.
        bytes_out: sent.
    """

    dequantize: int
    aggregate: int
    requantize: Mapping[int, int]
    train: int
    bytes_in: int
    bytes_out: int

    @property
    def total(self) -> int:
        """All bit operations of a round."""
        return self.dequantize + self.aggregate + sum(self.requantize.values()) + self.train


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
class Check:
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

    def check(self, bits: int) -> Check | None:
        """Formula beside measurement; None if these bits were not measured."""
        found = self.bitwidths[bits]
        if found.measured is None:
            return None
        images = found.measured.images
        packed = sum(packed_size(w.count, w.bits) for w in found.trace.weights)
        return Check(images, found.memory(images), found.measured.memory, packed, found.wire.packed)

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

    def write(self, path: Path) -> None:
        """Write :meth:`to_json` to a file, making its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _memory_json(memory: Memory) -> dict[str, int]:
    return {**asdict(memory), "total": memory.total, "peak": memory.peak}


def _client_json(client: ClientCost) -> dict[str, Any]:
    return {**asdict(client), "memory": _memory_json(client.memory)}


Costs = dict[tuple[int, int], tuple[BitOperations, Memory]]


def one_client(
    config: RunConfig, name: str, images: int, width: Bitwidth, work: RoundWork, clients: int, known: Costs
) -> ClientCost:
    """The cost of one of ``clients`` clients in the bits of ``width``; ``known`` keeps costs by bits and batch."""
    batch = width.training.batch(images)
    if (width.bits, batch) not in known:
        known[width.bits, batch] = width.operations(batch), width.memory(batch)
    operations, memory = known[width.bits, batch]
    steps = width.training.steps(images) * config.local_epochs if work.clients_train else 0
    down, up = (width.wire.total, width.upload) if work.traffic else (0, 0)
    rounds = config.rounds * work.participants / clients
    return ClientCost(name, width.bits, images, batch, steps, operations * steps, memory, down, up, rounds)


def _clients(config: RunConfig, sizes: Sizes, of: Mapping[str, Bitwidth], work: RoundWork) -> dict[str, ClientCost]:
    """The cost of every client in the bits that ``of`` gives it."""
    known: Costs = {}
    count = len(sizes.clients)
    return {n: one_client(config, n, images, of[n], work, count, known) for n, images in sizes.clients.items()}


def _server(clients: Mapping[str, ClientCost], sizes: Sizes, of: Mapping[int, Bitwidth], work: RoundWork) -> ServerCost:
    full = of[FLOAT]

    def epoch(width: Bitwidth, images: int) -> BitOperations:
        return width.operations(width.training.batch(images)) * width.training.steps(images)

    each = 0
    if work.dequantize_epochs is not None:
        once = epoch(full, sizes.buffer)
        alone = once.forward + once.objective // 3  # a pass without updates: one of every three products
        each = once.total * work.dequantize_epochs or alone
    distinct = sorted({c.bits for c in clients.values()} - {FLOAT})
    requantize = {b: epoch(of[b], sizes.buffer).total * work.requantize_epochs for b in distinct}
    train = epoch(full, sizes.buffer).total * work.buffer_epochs
    train += epoch(full, sum(sizes.clients.values())).total * work.union_epochs
    parameters = sum(w.count for w in full.trace.weights) + full.trace.floats
    share = work.participants / max(len(clients), 1)
    return ServerCost(
        dequantize=each * work.participants,
        aggregate=parameters * work.participants * FLOAT * FLOAT if work.averages else 0,
        requantize=requantize,
        train=train,
        bytes_in=round(share * sum(c.bytes_up for c in clients.values())),
        bytes_out=round(share * sum(c.bytes_down for c in clients.values())),
    )


def client_rule(config: RunConfig) -> str:
    """What a client keeps besides its weights: ``lowbit.rule``, and what it received if FedProx or FedPAQ need it."""
    return config.lowbit.rule + {"fed_prox": "+proximal", "fed_paq": "+update"}.get(config.algorithm, "")


def ledger(
    config: RunConfig,
    sizes: Sizes | None = None,
    *,
    training: Training | None = None,
    work: RoundWork | None = None,
    objective: str | None = None,
    upload: Upload | None = None,
    measure_seconds: float | None = None,
    say: Say = silent,
) -> Ledger:
    """The cost of a run, without running it.

    Args:
        config: the run's settings.
        sizes: images by client; by default counted from the data, or assumed (:func:`client_sizes`).
        training: what is trained; by default what the configuration names.
        work: what a round asks; by default that of ``config.algorithm``.
        objective: of an algorithm that has its own (``ALGORITHMS[config.algorithm].objective``).
        upload: likewise (``ALGORITHMS[config.algorithm].upload``).
        measure_seconds: also run a step per bitwidth, taking about this long in all; without it formulas only.
        say: told what is being done.

    Example:
        >>> from fedqssl.config import load_config
        >>> found = ledger(load_config("smoke"))
        >>> found.clients["client-00"].operations.total < found.full["client-00"].operations.total
        True
    """
    sizes = sizes if sizes is not None else client_sizes(config)
    bits = config.bits_for(list(sizes.clients))
    training = training or training_of(config, sizes.image, objective, sizes.classes)
    work = work or round_work(config, len(sizes.clients))
    wanted = sorted({*bits.values(), FLOAT})
    each = None if measure_seconds is None else measure_seconds / len(wanted)
    rule = client_rule(config)

    def one(b: int) -> Bitwidth:
        return study(training, b, rule, each, lambda line: say(f"{b} bits: {line}"), b == wanted[0], upload)

    widths = {b: one(b) for b in wanted}
    clients = _clients(config, sizes, {n: widths[b] for n, b in bits.items()}, work)
    full = _clients(config, sizes, dict.fromkeys(bits, widths[FLOAT]), work)
    return Ledger(config, sizes, work, clients, full, _server(clients, sizes, widths, work), widths)


__all__ = ["Check", "ClientCost", "Ledger", "ServerCost", "Totals", "client_rule", "ledger", "one_client"]
