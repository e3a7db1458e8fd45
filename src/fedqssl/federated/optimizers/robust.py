"""Shared by ``aggregation.robust``: another aggregate of the clients' models, in place of the algorithm's average.

Every operator treats batch-norm statistics and activation ranges like all else: to a hostile client they are one more way in. A
tensor that only some clients have (activation ranges of low-bit models) is aggregated over those. How many clients are taken to
be hostile, f, is a fifth of the round's, and at least one of three or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.state import State

FIFTH = 5

Combine = Callable[[State, Mapping[str, State], Mapping[str, float]], tuple[State, dict[str, State], dict[str, float]]]
"""(w before the round, w_k, p_k) -> (aggregate, the models that it is made of, their weights)."""


def hostile(clients: int) -> int:
    """How many of so many clients are taken to be hostile."""
    return max(clients // FIFTH, 1) if clients >= 3 else 0


def combined(server: Server, setting: str, combine: Combine) -> Server:
    """The server part whose parts are combined like this; ``setting`` is the word for it in the configuration."""

    def robust(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        if found.aggregate is None or not found.parts:
            raise ValueError(f"aggregation.robust = {setting!r} needs an algorithm that averages its clients' models")
        w, parts, weights = combine(operators.before(), found.parts, found.weights)
        recorded = {name: weights.get(name, 0.0) for name in found.weights}
        return state, replace(found, aggregate={**found.aggregate, **w}, parts=parts, weights=recorded)

    return robust


def by_entry(parts: Mapping[str, State], of_sorted: Callable[[Tensor], Tensor]) -> State:
    """A function of the clients' sorted values, (K, ...) -> (...), of every tensor, in float64."""
    result: State = {}
    for key in sorted(set().union(*parts.values())):
        values = torch.stack([parts[n][key].double() for n in sorted(parts) if key in parts[n]])
        result[key] = of_sorted(values.sort(0).values).float()
    return result


def entrywise(server: Server, setting: str, of_sorted: Callable[[Tensor], Tensor]) -> Server:
    """The server part that takes a function of the clients' sorted values in place of the average.

    All clients count alike, ``1/K``: operators on sorted values do not look at shares of images, which a client only claims.
    """

    def combine(
        before: State, parts: Mapping[str, State], p: Mapping[str, float]
    ) -> tuple[State, dict[str, State], dict[str, float]]:
        return by_entry(parts, of_sorted), dict(parts), dict.fromkeys(sorted(parts), 1 / len(parts))

    return combined(server, setting, combine)


__all__ = ["Combine", "by_entry", "combined", "entrywise", "hostile"]
