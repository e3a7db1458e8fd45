"""Shared by ``aggregation.weights``: the clients' models averaged once more, with other weights for every tensor.

With the algorithm's weights p_k and a factor f_k >= 0, one for a tensor or one for each of its entries,

    w = sum_k q_k w_k,    q_k = p_k f_k / sum_j p_j f_j

and q = p where all factors are 0. Statistics of batch norm and ranges of activations are the algorithm's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic
from fedqssl.lowbit.skip import is_skipped

Factors = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, float], Mapping[str, int]], dict[str, Tensor]]
"""Of one tensor: (w before the round, w_k, p_k, bits) -> f_k by client; nothing where the algorithm's average stays."""


def reweighted(server: Server, setting: str, factors: Factors, skip: Sequence[str] = ()) -> Server:
    """The server part whose parts are averaged with these factors.

    Args:
        server: the algorithm's.
        setting: the word for the factors in the configuration.
        factors: see :data:`Factors`.
        skip: layers whose average stays the algorithm's, as ``lowbit.skip`` names them.
    """

    def averaged(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        if found.aggregate is None or not found.parts:
            raise ValueError(f"aggregation.weights = {setting!r} needs an algorithm that averages its clients' models")
        w = dict(found.aggregate)
        weights: dict[str, State] = {n: {} for n in sorted(found.parts)}
        for key, before in operators.before().items():
            if key not in w or is_statistic(key) or is_skipped(key, skip):
                continue
            parts = {n: found.parts[n][key].double() for n in weights if key in found.parts[n]}
            q = shares(found.weights, factors(before.double(), parts, found.weights, arrived.bits))
            if q:
                w[key] = weighted_sum(parts, q).float()
            for n in q:
                weights[n][key] = q[n]
        return state, replace(found, aggregate=w, weights=_recorded(found.weights, weights), tensor_weights=weights)

    return averaged


def shares(p: Mapping[str, float], factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``q_k`` by client, in float64 and in the order of names."""
    having = {n: p[n] for n in sorted(factors)}
    total, plain = weighted_sum(factors, having), math.fsum(having.values())
    return {n: torch.where(total > 0, p[n] * factors[n] / total, p[n] / plain) for n in having}


def weighted_sum(parts: Mapping[str, Tensor], weights: Mapping[str, Tensor] | Mapping[str, float]) -> Tensor:
    """``sum_k q_k w_k`` over the clients that have weights, in float64 and in the order of names."""
    total = torch.zeros((), dtype=torch.float64)
    for n in sorted(weights):
        total = total + weights[n] * parts[n]
    return total


def _recorded(p: Mapping[str, float], weights: Mapping[str, State]) -> dict[str, float]:
    """One weight for each client: the mean over tensors of the mean over entries; the algorithm's if no tensor has others."""
    return {n: math.fsum(float(q.mean()) for q in of.values()) / len(of) if of else p[n] for n, of in weights.items()}


__all__ = ["Factors", "reweighted", "shares", "weighted_sum"]
