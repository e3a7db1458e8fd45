"""The coordinate-wise trimmed mean (Yin et al., Byzantine-robust distributed learning, ICML 2018, Definition 2).

For every entry, the f largest and the f smallest values of the K clients are left out (``aggregation.robust = "trimmed"``):

    w_i = 1/(K - 2f) sum_{k=f+1..K-f} w_(k),i,    w_(1),i <= ... <= w_(K),i

with ``f = max(K // 5, 1)``, 0 of fewer than three clients. All clients count alike.
"""

from __future__ import annotations

from torch import Tensor

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.robust import entrywise, hostile

NAME = "trimmed"


def inner_mean(values: Tensor) -> Tensor:
    """The mean of sorted values (K, ...) without the f at either end."""
    f = hostile(len(values))
    return values[f : len(values) - f].mean(0)


def with_trimmed_mean(server: Server) -> Server:
    """The server part with the trimmed mean in place of the average."""
    return entrywise(server, NAME, inner_mean)


__all__ = ["inner_mean", "with_trimmed_mean"]
