"""Multi-Krum (Blanchard et al., Machine learning with adversaries, NeurIPS 2017), around the server part of any algorithm.

A client's score is the sum of the squared distances to the ``K - f - 2`` models nearest to its own, at least one; the ``K - f``
clients of the lowest scores are averaged, with the algorithm's weights divided by their sum (``aggregation.robust = "krum"``):

    s_k = sum_{j near k} d(w_k, w_j),    d(u, v) = sum_t |u_t - v_t|^2 / |w_t|^2

Krum takes one vector of all parameters. Batch-norm variances are thousands of times as large as weights and would decide alone,
so that every tensor t is measured by its length before the round (1 if that is 0). Rounding moves a model, too: where bits are
mixed, clients of few bits are farther from all others and are the first to be left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.robust import combined, hostile
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import State

NAME = "krum"


def distance(u: State, v: State, before: State) -> float:
    """``d(u, v)`` over the tensors that both have."""
    total = 0.0
    for key in sorted(u.keys() & v.keys() & before.keys()):
        length = float(before[key].double().square().sum()) or 1.0
        total += float((u[key].double() - v[key].double()).square().sum()) / length
    return total


def scores(parts: Mapping[str, State], before: State, f: int) -> dict[str, float]:
    """``s_k`` by client."""
    names = sorted(parts)
    d = {(a, b): distance(parts[a], parts[b], before) for a in names for b in names if a < b}
    near = max(len(names) - f - 2, 1)
    return {n: sum(sorted(d[min(n, j), max(n, j)] for j in names if j != n)[:near]) for n in names}


def with_krum(server: Server) -> Server:
    """The server part with the average over the clients that multi-Krum selects."""

    def combine(
        before: State, parts: Mapping[str, State], p: Mapping[str, float]
    ) -> tuple[State, dict[str, State], dict[str, float]]:
        f = hostile(len(parts))
        found = scores(parts, before, f)
        chosen = sorted(sorted(parts, key=lambda n: (found[n], n))[: len(parts) - f])
        total = sum(p[n] for n in chosen)
        weights = {n: p[n] / total for n in chosen}
        kept = {n: parts[n] for n in chosen}
        return average(kept, weights), kept, weights

    return combined(server, NAME, combine)


__all__ = ["distance", "scores", "with_krum"]
