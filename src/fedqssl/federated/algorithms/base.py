"""What an algorithm is: what a client does with the model it gets, and what the server does with what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import fx

from fedqssl.federated.algorithms.work import Work, averaging
from fedqssl.federated.client import Client, local_update
from fedqssl.federated.server.validate import Check, check_model
from fedqssl.federated.state import State

Where = Literal["buffer", "everywhere"]


class ServerOperators(Protocol):
    """The server's operators, run wherever the engine likes; results are keyed by client name, never ordered."""

    def before(self) -> State:
        """The aggregated state that the round began with."""

    def read(self, payloads: Mapping[str, bytes]) -> dict[str, State]:
        """The float states of models as they came."""

    def dequantize(self, payloads: Mapping[str, bytes]) -> dict[str, tuple[State, float]]:
        """De-quantize each client's model on the buffer: ``w'_k`` and ``L_DQ_k``, NaN for one that diverges."""

    def requantize(self, state: State, epochs: int | None = None) -> dict[str, bytes]:
        """A state in every client's own bits, made once per bitwidth; ``epochs`` overrides the configured fine-tuning."""

    def train(self, state: State, where: Where, epochs: int) -> tuple[State, float]:
        """Full-precision epochs on the buffer, or on all clients' images in one place; the state and the last loss."""

    def settle(self, state: State) -> State:
        """The same weights with batch-norm statistics of the buffer."""


@dataclass(frozen=True)
class Arrived:
    """What a round brings to the server: valid uploads and sizes by client, and the run's settings for the server."""

    payloads: Mapping[str, bytes]
    samples: Mapping[str, int]
    clients: tuple[str, ...]
    bits: Mapping[str, int]
    dequantize_epochs: int = 1
    local_epochs: int = 1
    temperature: float = 1.0

    def shares(self) -> dict[str, float]:
        """``|D_k| / |D|`` over the clients that replied."""
        total = sum(self.samples[name] for name in self.payloads)
        return {name: self.samples[name] / total for name in sorted(self.payloads)}


@dataclass(frozen=True)
class Round:
    """What a round of the server gives.

    Args:
        state: the aggregated state; None if there is none (no federation).
        payloads: the next model by client; clients that are not named keep what they have.
        weights: aggregation weights by client.
        losses: de-quantization losses by client.
        server_loss: of training that the server does without clients.
        rejected: why uploads that looked valid were left out, by client.
    """

    state: State | None
    payloads: dict[str, bytes]
    weights: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    server_loss: float | None = None
    rejected: dict[str, str] = field(default_factory=dict)


Server = Callable[[Arrived, ServerOperators], Round]


@dataclass(frozen=True)
class Algorithm:
    """One federated algorithm and everything that is known about it (``docs/add-an-algorithm.md``).

    Args:
        name: its name in configurations.
        title: how tables and reports print it.
        description: one line for ``fedqssl list algorithms``.
        server: from what arrived to the aggregated state and the payloads sent back.
        client: what a client does with its payload; Algorithm 2 on local images by default.
        check: raises ContainerError for an upload that the server must not use.
        upload: what a client sends for a model in so many bits, if that is not its container. The cost ledger counts it; and
            where a model is wanted back (local evaluation), such a client trains by Algorithm 2.
        objective: what is trained, if the algorithm does not leave it to the configuration.
        has_clients: whether clients take part at all (controls such as ``server_only`` do without).
        federates: whether models travel; if not (``local_only``), no bytes are counted.
        work: what a round asks of clients and server, for the ledger; plain averaging by default.
        keeps: what a client keeps of the model that it received while it trains, for the ledger: ``proximal`` (to stay
            near it), ``update`` (to send the difference) or nothing.
        revision: raised by one when a change to the algorithm changes its accuracies, so that old and new runs are not
            compared by mistake.
        control: whether it is there to be compared with, not to be used.
    """

    name: str
    title: str
    description: str
    server: Server
    client: Client = local_update
    check: Check = check_model
    upload: Callable[[fx.GraphModule, int], bytes] | None = None
    objective: str | None = None
    has_clients: bool = True
    federates: bool = True
    work: Work = averaging
    keeps: Literal["", "proximal", "update"] = ""
    revision: int = 0
    control: bool = False
