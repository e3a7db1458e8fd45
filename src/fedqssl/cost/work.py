"""What one round of each algorithm asks of clients and server."""

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
        dequantize_epochs: full-precision epochs on the buffer for every received model; 0 is one pass without updates, None
            nothing.
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


def _fed_qssl(config: RunConfig, count: int) -> RoundWork:
    server = config.server
    return RoundWork(count, dequantize_epochs=server.dequantize_epochs, requantize_epochs=server.requantize_epochs)


def _plain(config: RunConfig, count: int) -> RoundWork:
    return RoundWork(count)


def _local_only(config: RunConfig, count: int) -> RoundWork:
    return RoundWork(count, traffic=False, hands_out=False, averages=False)


def _server_only(config: RunConfig, count: int) -> RoundWork:
    server = config.server
    return RoundWork(
        count,
        clients_train=False,
        traffic=False,
        requantize_epochs=server.requantize_epochs,
        buffer_epochs=server.dequantize_epochs * count,
        averages=False,
    )


def _central(config: RunConfig, count: int) -> RoundWork:
    return RoundWork(
        count,
        clients_train=False,
        traffic=False,
        requantize_epochs=config.server.requantize_epochs,
        union_epochs=config.local_epochs,
        averages=False,
    )


def _untrained(config: RunConfig, count: int) -> RoundWork:
    return RoundWork(count, clients_train=False, traffic=False, averages=False)


WORK: dict[str, Callable[[RunConfig, int], RoundWork]] = {
    "fed_qssl": _fed_qssl,
    "local_only": _local_only,
    "server_only": _server_only,
    "central": _central,
    "untrained": _untrained,
}
"""Algorithms whose round is not plain averaging of trained clients."""


def round_work(config: RunConfig, clients: int) -> RoundWork:
    """The work of one round of ``config.algorithm``; an algorithm not in ``WORK`` averages what trained clients send."""
    return WORK.get(config.algorithm, _plain)(config, config.participants(clients))


__all__ = ["WORK", "RoundWork", "round_work"]
