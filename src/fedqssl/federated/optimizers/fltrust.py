"""FLTrust (Cao, Fang, Liu, Gong, NDSS 2021) with the buffer as the root of trust, around the server part of any algorithm.

The server trains the model w before the round on its buffer, in full precision, as many steps as ``server.steps`` says (one epoch
of the buffer where ``server.dequantize_epochs`` counts). With its update g and ``u_k = w_k - Q_k(w)``, what client k changed in
the model that it received (``aggregation.robust = "fltrust"``):

    c_k = cos(u_k, g),    m_s = max(median of the positive c_j of the clients of s bits, CHANCE / sqrt(n))
    t_k = min(max(c_k, 0) / m_s, 1)    for a client of s bits
    w <- w + sum_k q_k |g| / |u_k| u_k,    q_k = t_k / sum_j t_j

FLTrust's trust is ``max(c_k, 0)``. Stochastic rounding adds noise to u_k that is orthogonal to g: a 4-bit client's cosine is a
fraction of a 12-bit client's that learned the same, and would count a fraction. So cosines are compared within a bitwidth, and
nobody counts more than the typical client of its bits. The cosine of n random numbers with anything is about ``1 / sqrt(n)``:
what is not far beyond that, earns little, even if all clients of these bits are like that.

Updates are as long as the server's: steps of the server that are few or small make rounds that move little. What is measured
(batch-norm statistics, activation ranges) is the median of the trusted clients'. Shares of images, which clients only claim, do
not count. The updates are those of the uploads: what Fed-QSSL's de-quantization adds to single models is not used. If no update
agrees with the server's, there is nothing to aggregate, and the round is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from fedqssl.config import ConfigError
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.optimizers.agreement import cosine
from fedqssl.federated.optimizers.median import middle
from fedqssl.federated.optimizers.pseudo_gradient import step_from
from fedqssl.federated.optimizers.robust import by_entry
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic

NAME = "fltrust"
CHANCE = 3.0


def trust(updates: Mapping[str, State], root: State, bits: Mapping[str, int]) -> dict[str, float]:
    """``t_k`` by client."""
    g = flat(root, root)
    c = {n: max(float(cosine(flat(u, root), g)), 0.0) for n, u in sorted(updates.items())}
    least = CHANCE / math.sqrt(max(g.numel(), 1))
    typical = {
        b: max(median([c[n] for n in c if bits[n] == b and c[n] > 0] or [0.0]), least) for b in {bits[n] for n in c}
    }
    return {n: min(c[n] / typical[bits[n]], 1.0) for n in c}


def trusted_sum(before: State, updates: Mapping[str, State], root: State, q: Mapping[str, float]) -> State:
    """``w + sum_k q_k |g| / |u_k| u_k`` of everything in ``root``, in float64 and in the order of names."""
    w = {key: before[key].double() for key in root}
    length = float(flat(root, root).norm())
    for n in sorted(q):
        own = float(flat(updates[n], root).norm())
        for key in w:
            if q[n] > 0 and key in updates[n]:
                w[key] = w[key] + q[n] * length / own * updates[n][key].double()
    return {key: x.float() for key, x in w.items()}


def flat(state: State, like: State) -> Tensor:
    """The tensors of ``like`` as one vector, in float64; what the state lacks is 0."""
    parts = [(state[key] if key in state else torch.zeros_like(like[key])).double().flatten() for key in sorted(like)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def with_fltrust(algorithm: Algorithm) -> Server:
    """The algorithm's server part with FLTrust in place of the average."""

    def trusting(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = algorithm.server(state, arrived, operators)
        before, models, received = operators.before(), {}, {}
        for n in sorted(found.parts):
            received[n] = operators.read({n: arrived.sent[n]})[n]
            models[n] = read(algorithm, arrived.payloads[n], received[n], arrived.bits[n], operators)
        root = step_from(before, root_of_trust(operators))
        updates = {n: step_from(received[n], w) for n, w in models.items()}
        t = trust(updates, root, arrived.bits)
        if not any(t.values()):
            raise NothingToAggregateError("no client's update agrees with the server's own")
        q = {n: t[n] / math.fsum(t.values()) for n in t}
        trusted = {n: {key: x for key, x in models[n].items() if is_statistic(key)} for n in q if q[n] > 0}
        w = {**by_entry(trusted, middle), **trusted_sum(before, updates, root, q)}
        parts = {n: {**trusted[n], **trusted_sum(before, updates, root, {n: 1.0})} for n in trusted}
        weights = {n: q.get(n, 0.0) for n in found.weights}
        return state, replace(found, aggregate={**(found.aggregate or {}), **w}, parts=parts, weights=weights)

    return trusting


def read(algorithm: Algorithm, upload: bytes, received: State, bits: int, operators: ServerOperators) -> State:
    """The model that an upload stands for."""
    model = algorithm.model_in(upload, received, bits, operators.context.task)
    if model is None:
        raise ConfigError(f"{algorithm.name} does not say how its uploads are read (model_of)")
    return model


def root_of_trust(operators: ServerOperators) -> State:
    """The model before the round, trained on the buffer."""
    server, images = operators.context.config.server, len(operators.context.buffer())
    if not images:
        raise ConfigError(f"aggregation.robust = {NAME!r} needs a buffer, and the server has no images")
    steps = server.steps if server.dequantize_epochs is None else None
    return operators.train(operators.before(), "buffer", 1, steps=steps or None)[0]


__all__ = ["trust", "trusted_sum", "with_fltrust"]
