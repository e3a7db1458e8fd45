"""Control: all clients' images in one place, full precision.

The upper bound: the gap to ``fed_qssl`` is the price of federation and few bits.
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, without_clients


def central(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """E epochs per round over the union of the clients' images; then handed out as by Fed-QSSL's server."""
    w, loss = operators.train(operators.before(), "everywhere", arrived.local_epochs)
    return state, Round(w, operators.requantize, server_loss=loss)


def _work(config: RunConfig, participants: int) -> RoundWork:
    return without_clients(participants, config.server.requantize_epochs, union_epochs=config.local_epochs)


CENTRAL = Algorithm(
    "central",
    "control: central",
    "control: all clients' images in one place, full precision",
    central,
    has_clients=False,
    work=_work,
    control=True,
)
