"""The work of clients and server in one round of an algorithm, for the cost ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedqssl.config import RunConfig


@dataclass(frozen=True)
class RoundWork:
    """One round's work.

    Args:
        participants: clients that take part.
        clients_train: whether clients train at all.
        traffic: whether models travel in a round.
        hands_out: whether every client gets its model once more after the last round.
        dequantize_epochs: full-precision epochs on the buffer for every received model; 0 means one pass without updates, None
            no pass at all.
        requantize_epochs: low-bit epochs on the buffer, once per distinct bitwidth below 32.
        buffer_epochs: full-precision epochs of one model on the buffer.
        union_epochs: full-precision epochs of one model on all clients' images.
        averages: whether received models are averaged.
    """

    participants: int
    clients_train: bool = True
    traffic: bool = True
    hands_out: bool = True
    dequantize_epochs: int | None = None
    requantize_epochs: int = 0
    buffer_epochs: int = 0
    union_epochs: int = 0
    averages: bool = True


Work = Callable[[RunConfig, int], RoundWork]
"""(settings, clients of a round) -> the round's work."""


def averaging(config: RunConfig, participants: int) -> RoundWork:
    """Clients train, the server averages and rounds: no work on the buffer."""
    return RoundWork(participants)


def without_clients(
    participants: int, requantize_epochs: int, buffer_epochs: int = 0, union_epochs: int = 0
) -> RoundWork:
    """Nothing travels during the rounds; the server hands out its own model at the end."""
    return RoundWork(
        participants,
        clients_train=False,
        traffic=False,
        requantize_epochs=requantize_epochs,
        buffer_epochs=buffer_epochs,
        union_epochs=union_epochs,
        averages=False,
    )


__all__ = ["RoundWork", "Work", "averaging", "without_clients"]
