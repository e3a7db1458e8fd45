"""What a run needs of whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from fedqssl.federated.algorithms.base import ServerOperators
from fedqssl.federated.client import ClientMetrics

Key = TypeVar("Key")


class Engine(ServerOperators, Protocol):
    """Moves bytes between the two roles and runs the server's operators; no algorithm inside."""

    def train_clients(
        self, payloads: Mapping[str, bytes], round_number: int, lr: float, *, return_model: bool = False
    ) -> tuple[dict[str, tuple[bytes, ClientMetrics]], dict[str, str]]:
        """Replies of the clients that got a payload, and reasons of those that failed.

        ``return_model``: replies are models, also where the algorithm sends something else.
        """

    def server_round(self, round_number: int, lr: float, server_lr: float, aggregated: bytes | None) -> None:
        """Set the round, the learning rate and the model before it, for the server's operators."""

    def evaluate(self, judge: Callable[..., float], jobs: Mapping[Key, tuple[Any, ...]]) -> dict[Key, float]:
        """``judge(context, *arguments)`` of every job, wherever there is room; a module's function, long jobs first."""
        ...

    def peak_memory(self) -> int:
        """Largest resident size so far of a process of the server's."""
        ...
