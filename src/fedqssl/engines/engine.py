"""The interface of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.job import Job

Replies = dict[str, tuple[bytes, ClientMetrics]]
"""Uploads and metrics by client."""


class Engine(Protocol):
    """Carries a round's models to the clients and their replies back; knows nothing of algorithms."""

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """Replies of the clients that were sent a payload, and why the others failed."""
        ...


__all__ = ["Engine", "Replies"]
