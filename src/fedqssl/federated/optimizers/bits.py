"""Weights by bits (``aggregation.weights = "bits"``): the noisier a client's rounding, the less its model counts.

Stochastic rounding of a small step ``a g`` to a grid with cells of size c has variance ``|a g| c``, so that the steps of a round
that move an entry by d have at least ``|d| c`` together. In levels, the cells of s bits are ``c_s = 2 / (2^s - 1)``; at full
precision ``c = 0``. The noise that all clients share, of drawing images and batches, is taken to be as large as the movement
itself, ``d^2``. Clients then count by the inverse of their variance:

    f_k = d^2 / (d^2 + d c_k) = d / (d + c_k),    d = mean_i |l_i(w_agg) - l_i(w)|,    l(x) = tanh(x) / max|tanh(w)|

for every weight tensor, with w the model before the round and w_agg the algorithm's average. What travels as floats (batch norm,
biases, layers in ``lowbit.skip``) is not rounded and is averaged as by the algorithm, as is everything if all clients have the
same bits. Our own formula, from the paper's Assumption 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.reweighted import reweighted, weighted_sum
from fedqssl.lowbit.policy import is_weight
from fedqssl.quant import compand_scale

NAME = "bits"
FULL = 32


def cell(bits: int) -> float:
    """``c_s = 2 / (2^s - 1)``, the distance of neighbouring levels."""
    return 0.0 if bits == FULL else 2 / (2**bits - 1)


def factors(
    before: Tensor, parts: Mapping[str, Tensor], p: Mapping[str, float], bits: Mapping[str, int]
) -> dict[str, Tensor]:
    """``f_k = d / (d + c_k)`` by client."""
    scale = compand_scale(before)
    if not is_weight(before) or scale == 0 or len({bits[n] for n in parts}) == 1:
        return {}
    d = (weighted_sum(parts, {n: p[n] for n in parts}).tanh() - before.tanh()).abs().mean() / scale
    return {n: d / (d + cell(bits[n])) for n in parts} if d > 0 else {}


def with_weights_by_bits(server: Server, skip: Sequence[str] = ()) -> Server:
    """The server part with weights by bits; ``skip`` names the layers that clients hold in floats."""
    return reweighted(server, NAME, factors, skip)


__all__ = ["cell", "factors", "with_weights_by_bits"]
