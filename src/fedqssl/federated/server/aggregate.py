"""Weighted aggregation (Algorithm 1, line 13): ``w_G = sum_k p_k w'_k``, ``p_k = exp(-L_k) / sum_j exp(-L_j)``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedqssl.federated.state import State


def softmax_weights(losses: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """``p_k = softmax(-L_DQ_k / T)`` by client name; the paper uses T = 1."""
    if not losses:
        raise ValueError("nothing to aggregate: no client's model arrived")
    bad = [name for name, loss in losses.items() if not math.isfinite(loss)]
    if bad:
        raise ValueError(f"de-quantization losses are not finite: {', '.join(sorted(bad))}")
    lowest = min(losses.values())
    exponentials = {n: math.exp((lowest - losses[n]) / temperature) for n in sorted(losses)}
    total = math.fsum(exponentials.values())
    return {n: e / total for n, e in exponentials.items()}


def average(states: Mapping[str, State], weights: Mapping[str, float]) -> State:
    """``sum_k p_k w_k`` of every tensor, in float64 and in the order of client names: replies may arrive in any order.

    A tensor that only some clients have (activation ranges of low-bit models) is averaged over those.
    """
    names = sorted(states)
    result: State = {}
    for key in sorted(set().union(*(states[n] for n in names))):
        having = [n for n in names if key in states[n]]
        total = math.fsum(weights[n] for n in having)
        mean = torch.zeros_like(states[having[0]][key], dtype=torch.float64)
        for n in having:
            mean += states[n][key].double() * (weights[n] / total)
        result[key] = mean.float()
    return result
