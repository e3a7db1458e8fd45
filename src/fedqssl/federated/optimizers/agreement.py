"""Layer-wise weights by agreement, after L-DAWA (Rehman et al., ICCV 2023), around the server part of any algorithm.

For every tensor, a client's model counts by its angle to the model w before the round (``aggregation.weights = "agreement"``):

    f_k = max(0, cos(w_k, w)),    cos(u, v) = <u, v> / (|u| |v|)

L-DAWA's layer is ``1/K sum_k cos(w_k, w) w_k``, which also becomes smaller in every round. Here the weights are divided by their
sum, and they start from the algorithm's weights instead of 1/K. A tensor that was all zeros before the round has no direction and
is averaged as by the algorithm. Rounding turns a model, too, so that clients of few bits count less.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.reweighted import reweighted

NAME = "agreement"


def factors(
    before: Tensor, parts: Mapping[str, Tensor], p: Mapping[str, float], bits: Mapping[str, int]
) -> dict[str, Tensor]:
    """``f_k = max(0, cos(w_k, w))`` by client; 0 for a tensor of zeros."""
    if not before.any():
        return {}
    return {n: cosine(w, before).clamp(min=0) for n, w in parts.items()}


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """``<u, v> / (|u| |v|)``, 0 if one of them is 0."""
    length = u.norm() * v.norm()
    return (u * v).sum() / length if length > 0 else torch.zeros_like(length)


def with_weights_by_agreement(server: Server) -> Server:
    """The server part with weights by agreement."""
    return reweighted(server, NAME, factors)


__all__ = ["cosine", "factors", "with_weights_by_agreement"]
