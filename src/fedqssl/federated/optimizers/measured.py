"""Batch-norm statistics measured by the server, around the server part of any algorithm (``aggregation.batch_norm = "buffer"``).

    mu, sigma^2 = means over ``BATCHES`` batches of the buffer's views, with the aggregate's weights

Nothing of the clients' statistics is left, so that false ones do no harm. The buffer's images then decide alone, however unlike
the clients' they are. Activation ranges, which only low-bit models have, stay the average.
"""

from __future__ import annotations

from dataclasses import replace

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState

BATCHES = 10


def with_measured_statistics(server: Server) -> Server:
    """The server part whose aggregate has the buffer's statistics."""

    def measured(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        if found.aggregate is None:
            raise ValueError("aggregation.batch_norm = 'buffer' needs an algorithm that aggregates models")
        return state, replace(found, aggregate=operators.settle(found.aggregate, BATCHES))

    return measured


__all__ = ["with_measured_statistics"]
