"""The coordinate-wise median (Yin et al., Byzantine-robust distributed learning, ICML 2018, Definition 1).

    w_i = median of w_1,i ... w_K,i

for every entry i; of an even number of clients, the mean of the two in the middle (``aggregation.robust = "median"``). All
clients count alike. Low-bit models take few values, so that the median of few clients does, too.
"""

from __future__ import annotations

from torch import Tensor

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.robust import entrywise

NAME = "median"


def middle(values: Tensor) -> Tensor:
    """The median of sorted values (K, ...)."""
    last = len(values) - 1
    return (values[last // 2] + values[(last + 1) // 2]) / 2


def with_median(server: Server) -> Server:
    """The server part with the median in place of the average."""
    return entrywise(server, NAME, middle)


__all__ = ["middle", "with_median"]
