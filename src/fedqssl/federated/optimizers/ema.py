"""An exponential moving average of the aggregate over rounds, around the server part of any algorithm (``server.ema``).

    a_1 = w_1,    a_(t+1) = beta a_t + (1 - beta) w_(t+1)

Training continues from the aggregate w. The average a, batch-norm statistics included, is evaluated in every round and handed out
after the last one. Averages of low-bit iterates are what SWALP (Yang et al., ICML 2019) trains for.
"""

from __future__ import annotations

from dataclasses import replace

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.server_state import part_of, with_part

NAME = "ema"


def with_ema(server: Server, beta: float) -> Server:
    """The server part with a moving average that keeps a share ``beta`` of itself in every round."""

    def averaged(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        before = part_of(state, NAME)
        state, found = server(state, arrived, operators)
        if found.aggregate is None:
            raise ValueError("server.ema needs an algorithm that aggregates models")
        a = {n: beta * before[n] + (1 - beta) * w if n in before else w for n, w in found.aggregate.items()}
        return with_part(state, NAME, a), replace(found, served=a)

    return averaged


__all__ = ["with_ema"]
