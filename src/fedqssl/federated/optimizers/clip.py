"""Clipping of the clients' steps (Sun et al., Can you really backdoor federated learning?, 2019), around any algorithm.

With ``d_k = w_k - w`` from the model w before the round and the algorithm's weights p (``aggregation.robust = "clip"``):

    w <- w + sum_k p_k min(1, C / |d_k|) d_k,    C = the median of |d_1| ... |d_K|

Their bound is a number; the median needs none and holds as long as most clients are honest. What is trained and what is measured
(batch-norm statistics, activation ranges) have norms and bounds of their own: statistics are so much larger that weights would
not count in a common one. A clipped client still pulls in its own direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.robust import combined
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic

NAME = "clip"


def clipped(before: State, parts: Mapping[str, State], measured: bool) -> dict[str, State]:
    """``w + min(1, C / |d_k|) d_k`` by client, of what is measured or of what is trained."""
    d = {
        n: {
            key: x.double() - before[key].double()
            for key, x in w.items()
            if key in before and is_statistic(key) == measured
        }
        for n, w in parts.items()
    }
    norms = {n: math.sqrt(math.fsum(float(x.square().sum()) for x in step.values())) for n, step in d.items()}
    bound = median(norms.values())
    return {
        n: {
            key: parts[n][key] if norms[n] <= bound else (before[key] + bound / norms[n] * x).float()
            for key, x in of.items()
        }
        for n, of in d.items()
    }


def with_clip(server: Server) -> Server:
    """The server part with clipped steps."""

    def combine(
        before: State, parts: Mapping[str, State], p: Mapping[str, float]
    ) -> tuple[State, dict[str, State], dict[str, float]]:
        trained, measured = clipped(before, parts, False), clipped(before, parts, True)
        made = {n: {**w, **trained[n], **measured[n]} for n, w in parts.items()}
        return average(made, p), made, dict(p)

    return combined(server, NAME, combine)


__all__ = ["clipped", "with_clip"]
