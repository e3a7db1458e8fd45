"""What an algorithm is: what a client does with the model it receives, and what the server does with the uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import fx

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.work import RoundWork, Work, averaging, with_checks, with_clusters
from fedqssl.federated.client import Client, local_update
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.server.validate import Check, check_model
from fedqssl.federated.server_state import ServerState
from fedqssl.federated.state import State, read_payload
from fedqssl.federated.task import Task


@dataclass(frozen=True)
class Arrived:
    """What arrives at the server in a round: valid uploads and sizes by client, and the run's settings for the server.

    ``sent`` holds what the clients of the round received, by client.
    """

    payloads: Mapping[str, bytes]
    samples: Mapping[str, int]
    clients: tuple[str, ...]
    bits: Mapping[str, int]
    local_epochs: int | None = 1
    local_steps: int | None = None
    temperature: float = 1.0
    sent: Mapping[str, bytes] = field(default_factory=dict)
    max_share: float = 1.0

    def shares(self, clients: Iterable[str] | None = None) -> dict[str, float]:
        """``|D_k| / |D|`` over the clients that replied, or over some of them, none above ``max_share``."""
        names = sorted(self.payloads if clients is None else clients)
        total = sum(self.samples[name] for name in names)
        return capped({name: self.samples[name] / total for name in names}, self.max_share)


def capped(shares: Mapping[str, float], most: float) -> dict[str, float]:
    """``min(c p_k, most)`` with the c that makes the sum 1; equal shares if there are too few clients for that."""
    found, at_most = dict(shares), set[str]()
    while over := {name for name, p in found.items() if p > most} - at_most:
        at_most |= over
        rest = sum(p for name, p in shares.items() if name not in at_most)
        left = 1 - most * len(at_most)
        if left <= 0 or rest == 0:
            return dict.fromkeys(shares, 1 / len(shares))
        found = {name: most if name in at_most else left / rest * p for name, p in shares.items()}
    return found


@dataclass(frozen=True, eq=False)
class ClusterRound:
    """Clusters in a round.

    Args:
        of: the cluster of each client of the round.
        distances: from the signatures of the clients that were looked at to the centre of every cluster.
        served: the model to evaluate, by cluster.
    """

    of: Mapping[str, int]
    distances: Mapping[str, Mapping[int, float]]
    served: Mapping[int, fx.GraphModule]


@dataclass(frozen=True)
class Round:
    """The result of the server's part of a round.

    Args:
        aggregate: the aggregated state, from which training continues; None without federation.
        refine: further training of the aggregate on the server, with its loss; applied after the server's optimiser, if any, has
            changed the aggregate, and before everything else.
        hand_out: a state in every client's own bits; applied to the aggregate in the end.
        payloads: the next model by client if there is no aggregate; clients that are not listed keep their model.
        weights: aggregation weights by client.
        losses: de-quantization losses by client.
        server_loss: loss of the server's training of one model.
        rejected: why valid uploads were left out, by client.
        parts: the states by client whose average, with ``weights``, is the aggregate, for optimisers that need their spread.
        tensor_weights: weights by client and tensor, where those of a tensor or of its entries are not ``weights``
            (``aggregation.weights``); ``weights`` are then their means.
        step_size: of the server's optimiser, if it chose one.
        served: the state that is evaluated, and handed out after the last round, if it is not the aggregate (``server.ema``).
        clusters: what was found out about clusters, if there are any (``clusters``).
    """

    aggregate: State | None
    hand_out: Callable[[State], dict[str, bytes]] | None = None
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    server_loss: float | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)
    served: State | None = None
    refine: Callable[[State], tuple[State, float]] | None = None
    parts: Mapping[str, State] = field(default_factory=dict)
    step_size: float | None = None
    tensor_weights: Mapping[str, State] = field(default_factory=dict)
    clusters: ClusterRound | None = None


Server = Callable[[ServerState, Arrived, ServerOperators], tuple[ServerState, Round]]
"""The server's part of an algorithm: (state, arrived, operators) -> (next state, round)."""


def remembers_nothing(initial: State) -> ServerState:
    """The initial server state of an algorithm that keeps none."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """One federated algorithm with everything that the rest of the package needs to know about it (``docs/add-an-algorithm.md``).

    Args:
        name: its name in configurations.
        title: how tables and reports print it.
        description: one line for ``fedqssl list algorithms``.
        server: from the server's state and what arrived to the next state and the round.
        init: the server's state before the first round, from the initial float model.
        client: what a client does with its payload; Algorithm 2 on local images by default.
        check: raises ContainerError for an upload that the server must not use.
        model_of: the model that an upload stands for, from (upload, the received state, bits, task), whose values are checked
            then (``fedqssl.federated.server.plausible``); by default the upload itself, unless ``check`` is another one.
        upload: what a client sends for a model in so many bits, if it is not the model's container. The cost ledger counts it;
            where the model itself is needed (local evaluation), such a client trains by Algorithm 2.
        objective: the objective, if the algorithm does not leave it to the configuration.
        has_clients: whether clients take part at all (not in controls such as ``server_only``).
        federates: whether models travel; if not (``local_only``), no bytes are counted.
        work: the work of clients and server in a round, for the ledger; plain averaging by default.
        keeps: what a client keeps of the model that it received while it trains, for the ledger: ``proximal`` (to stay
            near it), ``update`` (to send the difference) or nothing.
        revision: increased by one when a change to the algorithm changes its accuracies, so that old and new runs are not
            compared by mistake.
        control: whether it exists only for comparison.
        needs_sums_only: whether the server needs no more of its clients than the sum of what they changed, so that noise can hide
            each of them in it (``privacy.client_epsilon``).
        takes_turns: whether clients take turns if only a ``fraction`` of them trains in a round; otherwise they are drawn anew.
    """

    name: str
    title: str
    description: str
    server: Server
    init: Callable[[State], ServerState] = remembers_nothing
    client: Client = local_update
    check: Check = check_model
    model_of: Callable[[bytes, State, int, Task], State] | None = None
    upload: Callable[[fx.GraphModule, int], bytes] | None = None
    objective: str | None = None
    has_clients: bool = True
    federates: bool = True
    work: Work = averaging
    keeps: Literal["", "proximal", "update"] = ""
    revision: int = 0
    control: bool = False
    takes_turns: bool = False
    needs_sums_only: bool = False

    def model_in(self, upload: bytes, received: State, bits: int, task: Task) -> State | None:
        """The model that a valid upload stands for, if the algorithm says how to read it."""
        if self.model_of is not None:
            return self.model_of(upload, received, bits, task)
        return read_payload(upload, bits, task) if self.check is check_model else None

    @property
    def reads_uploads(self) -> bool:
        """Whether an upload is a model that the server will read, so that it is worth keeping what was read to check it."""
        return self.needs_sums_only and self.model_of is None and self.check is check_model

    def round_work(self, config: RunConfig, participants: int) -> RoundWork:
        """The work of a round with what ``aggregation.robust`` and ``clusters`` add to the algorithm's."""
        return with_clusters(config, with_checks(config, self.work(config, participants)))


__all__ = [
    "Algorithm",
    "Arrived",
    "ClusterRound",
    "Round",
    "Server",
    "ServerOperators",
    "ServerState",
    "remembers_nothing",
]
