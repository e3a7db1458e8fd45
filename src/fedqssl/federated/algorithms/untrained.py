"""Control: random weights. A model below it has learnt nothing.

Batch-norm statistics are taken from the buffer, as every trained row has them. That makes the control stronger where a network
is shallow (``small_cnn`` on ``scenes``: 61% against 40% without) and weaker where it is deep: a ResNet-18 as torch initialises
it, with batch norm that does nothing yet, has the better random features (``fedqssl bench learning --bits 0``).
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, without_clients


def untrained(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """The initial weights, rounded to each client's bits."""
    return state, Round(operators.settle(operators.before()), operators.round_to_bits)


def _work(config: RunConfig, participants: int) -> RoundWork:
    return without_clients(participants, requantize_epochs=0)


UNTRAINED = Algorithm(
    "untrained",
    "control: untrained",
    "control: random weights, batch norm settled",
    untrained,
    has_clients=False,
    work=_work,
    control=True,
)
