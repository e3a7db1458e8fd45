"""What an algorithm is: one function, from the clients' models of a round to the aggregated state and what is sent back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedqssl.federated.state import State


class Workers(Protocol):
    """The server's operators on its buffer, run wherever the engine likes; results are keyed, never ordered."""

    def dequantize(self, payloads: Mapping[str, bytes], bits: Mapping[str, int]) -> dict[str, tuple[State, float]]:
        """De-quantize each client's model."""

    def requantize(self, state: State, bits: set[int], epochs: int | None = None) -> dict[int, bytes]:
        """The aggregated model in each of these bitwidths; ``epochs`` overrides the configured fine-tuning."""

    def read(self, payloads: Mapping[str, bytes], bits: Mapping[str, int]) -> dict[str, State]:
        """The float states of the models as they came."""


@dataclass(frozen=True)
class Round:
    """What a round of the server gives: the aggregated state, a payload per bitwidth, weights and losses by client."""

    state: State
    payloads: dict[int, bytes]
    weights: dict[str, float]
    losses: dict[str, float] = field(default_factory=dict)


Server = Callable[[Mapping[str, bytes], Mapping[str, int], Mapping[str, int], Workers, float], Round]


@dataclass(frozen=True)
class Algorithm:
    """``server(payloads, bits, samples, workers, temperature)`` of one round; clients all run Algorithm 2."""

    name: str
    description: str
    server: Server
