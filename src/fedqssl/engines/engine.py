"""What a run needs of whatever carries its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedqssl.federated.algorithms.base import Workers
from fedqssl.federated.client import ClientMetrics


class Engine(Workers, Protocol):
    """Moves bytes between the two roles and runs the server's operators; no algorithm inside."""

    def train_clients(
        self, payloads: Mapping[str, bytes], round_number: int, lr: float, *, plainly: bool = False
    ) -> tuple[dict[str, tuple[bytes, ClientMetrics]], dict[str, str]]:
        """Replies of the clients that got a payload, and reasons of those that failed.

        ``plainly``: replies are models, also where the algorithm sends something else.
        """

    def server_round(self, round_number: int, lr: float, server_lr: float, aggregated: bytes | None) -> None:
        """Set the round, the learning rate and the model before it, for the server's operators."""

    def peak_memory(self) -> int:
        """Largest resident size so far of a process of the server's."""
        ...
