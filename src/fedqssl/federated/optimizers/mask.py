"""A mask for clients of fewer bits, after ProWD's selective aggregation (Yoon et al., ICML 2022, arXiv 2202.11453).

For every entry i of a weight tensor, a client counts only if it moved as the clients of more bits did on average
(``aggregation.weights = "mask"``). With ``d_k = w_k - w`` from the model w before the round and the algorithm's weights p:

    f_k,i = 1 if d_k,i h_k,i > 0, else 0,    h_k = sum_{j: s_j > s_k} p_j d_j

Clients of the most bits always count, so that entries on which the others disagree are theirs. An entry that did not move agrees
with nothing. Where an algorithm averages models, ``d_k`` includes the rounding of what client k received; where it averages
updates (Fed-Seq, Fed-QSSL+, FedPAQ), it does not. What travels as floats (batch norm, biases, layers in ``lowbit.skip``) is
averaged as by the algorithm, as is everything if all clients have the same bits. Only the idea is ProWD's, which masks what a
learned de-quantizer returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.reweighted import reweighted, weighted_sum
from fedqssl.lowbit.policy import is_weight

NAME = "mask"


def factors(
    before: Tensor, parts: Mapping[str, Tensor], p: Mapping[str, float], bits: Mapping[str, int]
) -> dict[str, Tensor]:
    """``f_k`` by client, 0 or 1 for every entry."""
    if not is_weight(before) or len({bits[n] for n in parts}) == 1:
        return {}
    d = {n: w - before for n, w in parts.items()}
    found = {}
    for n in d:
        h = weighted_sum(d, {j: p[j] for j in d if bits[j] > bits[n]})
        top = bits[n] == max(bits[j] for j in d)
        found[n] = torch.ones_like(before) if top else (d[n].sign() * h.sign() > 0).double()
    return found


def with_mask(server: Server, skip: Sequence[str] = ()) -> Server:
    """The server part with the mask; ``skip`` names the layers that clients hold in floats."""
    return reweighted(server, NAME, factors, skip)


__all__ = ["factors", "with_mask"]
