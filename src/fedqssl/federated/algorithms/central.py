"""Control: all clients' images in one place, full precision.

The upper bound: the gap to ``fed_qssl`` is the price of federation and few bits.
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, without_clients


def central(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """E epochs per round over the union of the clients' images, or as many steps as all clients of the round take together.

    The model is handed out as by Fed-QSSL's server.
    """
    steps = None if arrived.local_steps is None else arrived.local_steps * len(arrived.clients)
    w, loss = operators.train(operators.before(), "everywhere", arrived.local_epochs, steps=steps)
    return state, Round(w, operators.requantize, server_loss=loss)


def _work(config: RunConfig, participants: int) -> RoundWork:
    steps = (config.local_steps or 0) * participants
    return without_clients(
        participants, config.server.requantize_epochs, union_epochs=config.local_epochs or 0, union_steps=steps
    )


CENTRAL = Algorithm(
    "central",
    "control: central",
    "control: all clients' images in one place, full precision",
    central,
    has_clients=False,
    work=_work,
    control=True,
)
