"""Control: self-supervision on the buffer D_g alone. The gain of ``fed_qssl`` over it is the benefit of the clients' images.

The server spends as many full-precision steps on the buffer as Fed-QSSL's does on all clients' models together, then
re-quantizes in the same way.
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, on_one_model, without_clients


def server_only(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """``server.steps``, or ``dequantize_epochs`` for each client of the round, all on one model."""
    steps = operators.server_steps(len(arrived.clients))
    if not steps:  # as ``untrained``
        return state, Round(operators.settle(operators.before()), operators.requantize)
    w, loss = operators.train(operators.before(), "buffer", steps=steps)
    return state, Round(w, operators.requantize, server_loss=loss)


def _work(config: RunConfig, participants: int) -> RoundWork:
    return on_one_model(config, without_clients(participants, config.server.requantize_epochs))


SERVER_ONLY = Algorithm(
    "server_only",
    "control: server only",
    "control: self-supervision on the buffer alone, same server work",
    server_only,
    has_clients=False,
    work=_work,
    control=True,
)
