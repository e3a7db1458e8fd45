"""Clusters of clients with a model each (``clusters = K``), around the server part of any algorithm.

Where clients hold different kinds of images, one model for all is a compromise. Who belongs together is read from uploads that
the server receives anyway (as in clustered federated learning, Sattler, Mueller, Samek 2019; newcomers as in FlexCFL, Duan et al.
2021), without labels. In its first round every client trains the same model, the initial one, and its signature s_k
(:mod:`fedqssl.federated.optimizers.signatures`) says which kind of images it has:

    c(k) = argmin_c |s_k - m_c|,    m_c the mean signature of cluster c

K-means over the clients of the first round finds the centres m. Every cluster then is a federation of its own: its clients'
uploads go through the algorithm with its own model and its own server state.

A client whose first round comes later only finds its cluster in it: what it learned from the initial model is not averaged. With
``clusters_check = R`` a client trains the initial model again after R rounds in its cluster, and moves if another centre is
nearer. A cluster without clients keeps its model. Clients that never took part get the model of the largest cluster in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch
from torch import Tensor, fx

from fedqssl.config import ConfigError, RunConfig
from fedqssl.federated.algorithms.base import (
    Algorithm,
    Arrived,
    ClusterRound,
    Round,
    Server,
    ServerOperators,
    ServerState,
)
from fedqssl.federated.finish import finished, full_precision
from fedqssl.federated.optimizers.fltrust import read
from fedqssl.federated.optimizers.signatures import distances, k_means, mean_of, momentum_of, nearest, signature
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.server.validate import check_model
from fedqssl.lowbit import to_bytes

NAME = "clusters"
OF, SINCE, SIZE, CENTRE, MODEL, INNER = (f"{NAME}/{part}/" for part in ("of", "since", "size", "centre", "model", "in"))
"""Where the server's state keeps the cluster of a client and its rounds since that was found; of a cluster the number of
signatures in its centre, the centre, the model (bytes of a container), and the algorithm's own server state."""


def check_clusters(algorithm: Algorithm, config: RunConfig) -> None:
    """Raise ConfigError where there is nothing to put into clusters."""
    if not (algorithm.has_clients and algorithm.federates):
        raise ConfigError(f"{algorithm.name} averages no clients' models, so clusters must stay 1")
    if algorithm.model_of is None and algorithm.check is not check_model:
        raise ConfigError(f"{algorithm.name} does not say how its uploads are read (model_of), which clusters need")
    if (found := config.participants(config.clients)) < config.clusters:
        raise ConfigError(
            f"clusters = {config.clusters} needs as many clients in a round, not {found}; raise fraction or clients"
        )


def clusters_of(state: ServerState) -> dict[str, int]:
    """The cluster of every client that has one."""
    return {n: int(c) for n, c in sorted(_under(state, OF).items())}


def models_of(state: ServerState) -> dict[int, bytes]:
    """The model of every cluster, in full precision, as it travels."""
    found = {int(c): x for c, x in _under(state, MODEL).items() if isinstance(x, Tensor)}
    return {c: found[c].numpy().tobytes() for c in sorted(found)}


def _under(state: ServerState, prefix: str) -> ServerState:
    return {n.removeprefix(prefix): x for n, x in state.items() if n.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class _Clusters:
    """What the server remembers of its clusters.

    ``inner`` is the algorithm's own state by cluster; ``centres`` are mean signatures, of ``sizes`` clients.
    """

    of: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    centres: dict[int, Tensor] = field(default_factory=dict)
    models: dict[int, bytes] = field(default_factory=dict)
    inner: dict[int, ServerState] = field(default_factory=dict)

    @classmethod
    def read(cls, state: ServerState) -> _Clusters:
        models = models_of(state)
        since, sizes = _under(state, SINCE), _under(state, SIZE)
        return cls(
            clusters_of(state),
            {n: int(x) for n, x in since.items()},
            {int(c): int(x) for c, x in sizes.items()},
            {int(c): x for c, x in _under(state, CENTRE).items() if isinstance(x, Tensor)},
            models,
            {c: _under(state, f"{INNER}{c}/") for c in models},
        )

    def written(self) -> ServerState:
        """As a flat dictionary."""
        state: ServerState = {f"{OF}{n}": c for n, c in self.of.items()}
        state |= {f"{SINCE}{n}": x for n, x in self.since.items()}
        state |= {f"{SIZE}{c}": x for c, x in self.sizes.items()}
        state |= {f"{CENTRE}{c}": m for c, m in self.centres.items()}
        state |= {f"{MODEL}{c}": torch.frombuffer(bytearray(x), dtype=torch.uint8) for c, x in self.models.items()}
        return state | {f"{INNER}{c}/{n}": x for c, inner in self.inner.items() for n, x in inner.items()}

    def members(self, cluster: int) -> list[str]:
        """By name."""
        return sorted(n for n, c in self.of.items() if c == cluster)

    def with_clients(self, signatures: Mapping[str, Tensor], count: int) -> _Clusters:
        """With these clients where they belong: those of the first round together, later ones at the nearest centre."""
        if not signatures:
            return self
        if not self.centres:
            if len(signatures) < count:
                raise NothingToAggregateError(f"clusters = {count} needs as many valid updates in the first round")
            of = k_means(signatures, count)
            sizes = dict(sorted(Counter(of.values()).items()))
            return replace(self, of=of, sizes=sizes, centres={c: mean_of(signatures, of, c) for c in sizes})
        of, sizes, centres = dict(self.of), dict(self.sizes), dict(self.centres)
        for n, s in sorted(signatures.items()):
            c = of[n] = nearest(s, self.centres)
            sizes[c] += 1
            centres[c] = centres[c] + (s - centres[c]) / sizes[c]
        return replace(self, of=of, sizes=sizes, centres=centres)

    def everybody(self, clients: Iterable[str]) -> _Clusters:
        """With those that have no cluster in the largest one, and nobody due to be looked at again: the run ends."""
        largest = min(self.sizes, key=lambda c: (-len(self.members(c)), c))
        of = {**dict.fromkeys(clients, largest), **self.of}
        return replace(self, of=of, since=dict.fromkeys(of, 0))


@dataclass(frozen=True, eq=False)
class _Plan:
    """Who does what in a round.

    Args:
        before: the clusters before the round.
        after: the same after it, but for models and the algorithm's states.
        initial: clients that hold the initial model.
        signatures: of those of them that have trained it.
        due: clients that are to get it again.
    """

    before: _Clusters
    after: _Clusters
    initial: frozenset[str]
    signatures: Mapping[str, Tensor]
    due: frozenset[str]

    def trained(self, cluster: int, arrived: Arrived) -> list[str]:
        """The clients of a cluster whose uploads its model is made of: in the first round all."""
        late = self.signatures if self.before.models else {}
        return [n for n in self.after.members(cluster) if n in arrived.payloads and n not in late]

    def receivers(self, cluster: int) -> list[str]:
        """The clients of a cluster that get its next model."""
        return [n for n in self.after.members(cluster) if n not in self.due]


def _plan(
    algorithm: Algorithm, config: RunConfig, state: ServerState, arrived: Arrived, operators: ServerOperators
) -> _Plan:
    before, check = _Clusters.read(state), config.clusters_check
    known = {n for n in before.of if check is None or before.since[n] < check}
    initial = frozenset(arrived.bits) - known
    signatures = {n: _signature(algorithm, n, arrived, operators) for n in sorted(initial & arrived.payloads.keys())}
    after = before.with_clients(signatures, config.clusters)
    counted = {n: 0 if n in signatures else before.since[n] + 1 for n in arrived.payloads}
    after = replace(after, since={**before.since, **counted})
    if operators.is_last:
        after = after.everybody(arrived.bits)
    due = frozenset(n for n in after.of if check is not None and after.since[n] >= check)
    return _Plan(before, after, initial, signatures, due)


def _signature(algorithm: Algorithm, name: str, arrived: Arrived, operators: ServerOperators) -> Tensor:
    task, momentum = operators.context.task, momentum_of(operators.context.task)
    if momentum is None:
        raise ConfigError("clusters are found by the statistics of batch norms, and this model has none")
    received = operators.read({name: arrived.sent[name]})[name]
    model = read(algorithm, arrived.payloads[name], received, arrived.bits[name], operators)
    epochs = (arrived.local_epochs or 0) * task.steps(arrived.samples[name])
    return signature(received, model, epochs or arrived.local_steps or 1, momentum)


def with_clusters(server: Server, algorithm: Algorithm, config: RunConfig) -> Server:
    """The server part once for every cluster, after finding the clusters of the clients that trained the initial model."""

    def clustered(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        plan = _plan(algorithm, config, state, arrived, operators)
        models, inner = dict(plan.before.models), dict(plan.before.inner)
        rounds, served, payloads = list[Round](), dict[int, fx.GraphModule](), dict[str, bytes]()
        for c in sorted(plan.after.centres):
            trained, receivers = plan.trained(c, arrived), plan.receivers(c)
            some = _of_cluster(operators, arrived, {*trained, *receivers}, models.get(c, operators.aggregated))
            if trained:
                inner[c], found = server(inner.get(c, state), _of_clients(arrived, trained), some)
                made = finished(found, some)
                rounds.append(found)
                models[c], served[c], handed = made.aggregated, made.served, made.payloads
            else:
                w, receivers = some.before(), [n for n in receivers if n in plan.initial]
                served[c] = full_precision(some.context.task, w)
                handed = some.requantize(w) if receivers else {}
            payloads |= {n: handed[n] for n in receivers}
        task = operators.context.task
        payloads |= {n: to_bytes(task.converted(arrived.bits[n])) for n in sorted(plan.due & arrived.payloads.keys())}
        after = replace(plan.after, models=models, inner=inner)
        about = ClusterRound(
            {n: after.of[n] for n in sorted(arrived.payloads)},
            {n: distances(s, after.centres) for n, s in plan.signatures.items()},
            served,
        )
        return after.written(), replace(_merged(rounds), payloads=payloads, clusters=about)

    return clustered


def _of_cluster(
    operators: ServerOperators, arrived: Arrived, clients: Iterable[str], aggregated: bytes | None
) -> ServerOperators:
    """The operators of one cluster: its model, and only the bits that its clients need."""
    bits = {n: arrived.bits[n] for n in sorted(clients)}
    context = replace(operators.context, bits=bits)  # type: ignore[type-var]
    return replace(operators, context=context, aggregated=aggregated)


def _of_clients(arrived: Arrived, names: list[str]) -> Arrived:
    payloads, samples = {n: arrived.payloads[n] for n in names}, {n: arrived.samples[n] for n in names}
    return replace(arrived, payloads=payloads, samples=samples, clients=tuple(names))


def _merged(rounds: list[Round]) -> Round:
    """The figures of all clusters; weights sum to 1 in each."""
    losses = [found.server_loss for found in rounds if found.server_loss is not None]
    steps = [found.step_size for found in rounds if found.step_size is not None]
    return Round(
        None,
        weights={n: x for found in rounds for n, x in found.weights.items()},
        losses={n: x for found in rounds for n, x in found.losses.items()},
        rejected={n: x for found in rounds for n, x in found.rejected.items()},
        server_loss=fmean(losses) if losses else None,
        step_size=fmean(steps) if steps else None,
    )


__all__ = ["check_clusters", "clusters_of", "models_of", "with_clusters"]
