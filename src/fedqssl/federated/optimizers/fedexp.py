"""FedExP: speeding up federated averaging via extrapolation (Jhunjhunwala, Wang, Joshi, ICLR 2023), around any algorithm.

The aggregate is read as a mean step from the model before the round, ``d = sum_i p_i d_i`` with ``d_i = w_i - w_t``:

    w_(t+1) = w_t + eta d,    eta = min(max(1, sum_i p_i |d_i|^2 / (2 (|d|^2 + eps))), server.optimizer_lr)

with eps = 0.001 and the algorithm's weights p (1/M in the paper). The more the clients' steps differ in direction, the shorter
is their mean and the larger is eta: orthogonal steps of M clients give M/2. Rounding to few bits moves every w_i by noise of its
own, which counts in full in ``|d_i|^2`` and averages out in ``d``, so that eta says less the fewer the bits are: hence the bound,
which the paper does not have. Statistics of batch norm and ranges of activations are measured, not optimised: they are the
aggregate's.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.optimizers.pseudo_gradient import added_to, step_from
from fedqssl.federated.state import State

NAME = "fedexp"
EPS = 1e-3


def step_size(spread: float, mean: float, largest: float) -> float:
    """``eta`` from ``sum_i p_i |d_i|^2`` and ``|d|^2``."""
    return min(max(1.0, spread / (2 * (mean + EPS))), largest)


def with_fedexp(server: Server, largest: float) -> Server:
    """The server with FedExP's step size, at most ``largest``."""

    def stepped(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        if found.aggregate is None or not found.parts:
            raise ValueError(f"server.optimizer = {NAME!r} needs an algorithm that averages its clients' models")
        before = operators.before()
        d = step_from(before, found.aggregate)
        spread = math.fsum(_weighed(step_from(before, w), n, found) for n, w in sorted(found.parts.items()))
        eta = step_size(spread, _squared(d), largest)
        moved = added_to(before, {n: eta * x for n, x in d.items()}, found.aggregate) if eta > 1 else found.aggregate
        return state, replace(found, aggregate=moved, step_size=eta)

    return stepped


def _weighed(step: State, client: str, found: Round) -> float:
    """``p_i |d_i|^2``, with the weights of single tensors where there are any."""
    own, p = found.tensor_weights.get(client, {}), found.weights[client]
    weighed = math.fsum(float((own[n] * x.double().square()).sum()) for n, x in step.items() if n in own)
    return weighed + p * _squared({n: x for n, x in step.items() if n not in own})


def _squared(step: State) -> float:
    return math.fsum(float(x.double().square().sum()) for x in step.values())


__all__ = ["step_size", "with_fedexp"]
