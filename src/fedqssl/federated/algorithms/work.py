"""The work of clients and server in one round of an algorithm, for the cost ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedqssl.config import RunConfig
from fedqssl.federated.task import Task


@dataclass(frozen=True)
class ServerSteps:
    """Training steps of the server in a round.

    Args:
        dequantize: of each received model; 0 for a pass without updates, None if there is none.
        requantize: of the model of each bitwidth.
        buffer: of one model on the buffer.
        union: of one model on all clients' images.
    """

    dequantize: int | None
    requantize: int
    buffer: int
    union: int


@dataclass(frozen=True)
class RoundWork:
    """One round's work.

    Args:
        participants: clients that take part.
        clients_train: whether clients train at all.
        traffic: whether models travel in a round.
        hands_out: whether every client gets its model once more after the last round.
        dequantize_epochs: full-precision epochs on the buffer for every received model; 0 and no steps mean one pass without
            updates, None no pass at all.
        dequantize_steps: further steps of the same.
        passes: forward passes of every received model over the buffer, in its own bits, one view of each image.
        requantize_epochs: low-bit epochs on the buffer, once per distinct bitwidth below 32.
        buffer_epochs: full-precision epochs of one model on the buffer.
        buffer_steps: further steps of the same.
        union_epochs: full-precision epochs of one model on all clients' images.
        union_steps: further steps of the same.
        averages: whether received models are averaged.
    """

    participants: int
    clients_train: bool = True
    traffic: bool = True
    hands_out: bool = True
    dequantize_epochs: int | None = None
    dequantize_steps: int = 0
    passes: int = 0
    requantize_epochs: int = 0
    buffer_epochs: int = 0
    buffer_steps: int = 0
    union_epochs: int = 0
    union_steps: int = 0
    averages: bool = True

    def server_steps(self, task: Task, buffer: int, everyone: int) -> ServerSteps:
        """The server's part in steps, from the numbers of images on the buffer and of all clients."""
        epoch = task.steps(buffer)
        return ServerSteps(
            None if self.dequantize_epochs is None else self.dequantize_epochs * epoch + self.dequantize_steps,
            self.requantize_epochs * epoch,
            self.buffer_epochs * epoch + self.buffer_steps,
            self.union_epochs * task.steps(everyone) + self.union_steps,
        )


Work = Callable[[RunConfig, int], RoundWork]
"""(settings, clients of a round) -> the round's work."""


def averaging(config: RunConfig, participants: int) -> RoundWork:
    """Clients train, the server averages and rounds: no work on the buffer."""
    return RoundWork(participants)


def on_one_model(config: RunConfig, work: RoundWork) -> RoundWork:
    """With the server's work on the buffer, all on one model: ``server.steps``, or ``dequantize_epochs`` for each client."""
    epochs, steps = config.server.dequantize_epochs or 0, config.server.steps or 0
    return replace(work, buffer_epochs=epochs * work.participants, buffer_steps=steps)


def with_checks(config: RunConfig, work: RoundWork) -> RoundWork:
    """With the buffer's part in ``aggregation.robust``: ``fltrust`` trains a model on it, ``embedding`` shows it to all."""
    robust, server = config.aggregation.robust, config.server
    if robust == "fltrust":
        if server.dequantize_epochs is None:
            return replace(work, buffer_steps=work.buffer_steps + (server.steps or 0))
        return replace(work, buffer_epochs=work.buffer_epochs + 1)
    return replace(work, passes=work.passes + 1) if robust == "embedding" else work


def with_clusters(config: RunConfig, work: RoundWork) -> RoundWork:
    """With the server's work once for every cluster; what is counted by client or by epoch for each of them stays the same."""
    k = config.clusters
    return replace(
        work,
        dequantize_steps=work.dequantize_steps * k,
        buffer_steps=work.buffer_steps * k,
        requantize_epochs=work.requantize_epochs * k,
    )


def without_clients(
    participants: int, requantize_epochs: int, union_epochs: int = 0, union_steps: int = 0
) -> RoundWork:
    """Nothing travels during the rounds; the server hands out its own model at the end."""
    return RoundWork(
        participants,
        clients_train=False,
        traffic=False,
        requantize_epochs=requantize_epochs,
        union_epochs=union_epochs,
        union_steps=union_steps,
        averages=False,
    )


__all__ = [
    "RoundWork",
    "ServerSteps",
    "Work",
    "averaging",
    "on_one_model",
    "with_checks",
    "with_clusters",
    "without_clients",
]
