"""Weighted aggregation (Algorithm 1, line 13): ``w_G = sum_k p_k w'_k``, ``p_k = exp(-L_k) / sum_j exp(-L_j)``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic


class NothingToAggregateError(ValueError):
    """No client's model can be used in this round."""


def softmax_weights(losses: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """``p_k = softmax(-L_DQ_k / T)`` by client name; the paper uses T = 1."""
    if not losses:
        raise NothingToAggregateError("nothing to aggregate: no client's model arrived")
    bad = [name for name, loss in losses.items() if not math.isfinite(loss)]
    if bad:
        raise ValueError(f"de-quantization losses are not finite: {', '.join(sorted(bad))}")
    lowest = min(losses.values())
    exponentials = {n: math.exp((lowest - losses[n]) / temperature) for n in sorted(losses)}
    total = math.fsum(exponentials.values())
    return {n: e / total for n, e in exponentials.items()}


def with_updates(before: State, received: Mapping[str, State], states: Mapping[str, State]) -> dict[str, State]:
    """``w + (w_k - Q_k(w))`` by client: what a client changed in the model that it received, added to the server's own.

    A client receives the server's model w rounded to its bits, ``Q_k(w)``. That rounding is the same for all clients of these
    bits, so that an average of the models ``w_k`` would keep it; it is left out here. What is measured (batch-norm statistics,
    activation ranges) is the client's.
    """
    return {n: {key: _updated(key, x, before, received[n]) for key, x in w.items()} for n, w in states.items()}


def _updated(key: str, x: Tensor, before: State, received: State) -> Tensor:
    if is_statistic(key) or key not in before or key not in received:
        return x
    return (before[key].double() + x.double() - received[key].double()).float()


PART = 1 << 15
"""Entries that are averaged at a time: with their float64 they stay in the processor's cache."""


def _parts(x: Tensor) -> Sequence[Tensor]:
    """A tensor's entries in order, so many at a time."""
    return torch.split(x.reshape(-1), PART) if x.numel() > PART else [x]


def average(states: Mapping[str, State], weights: Mapping[str, float]) -> State:
    """``sum_k p_k w_k`` of every tensor, in float64 and in the order of client names: replies may arrive in any order.

    A tensor that only some clients have (activation ranges of low-bit models) is averaged over those.
    """
    names = sorted(states)
    result: State = {}
    for key in sorted(set().union(*(states[n] for n in names))):
        having = [n for n in names if key in states[n]]
        total = math.fsum(weights[n] for n in having)
        mean = torch.zeros_like(states[having[0]][key], dtype=torch.float64, memory_format=torch.contiguous_format)
        for part, *of in zip(*(_parts(x) for x in (mean, *(states[n][key] for n in having))), strict=True):
            for n, x in zip(having, of, strict=True):
                part += x.double() * (weights[n] / total)
        result[key] = mean.float()
    return result
