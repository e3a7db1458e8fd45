"""Control: random weights. What is below it has learnt nothing.

Only batch-norm statistics are taken from the buffer: without them the features of random weights are not normalised, and the
control would be weaker than it need be.
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Workers


def untrained(arrived: Arrived, workers: Workers) -> Round:
    """The initial weights, rounded to each client's bits."""
    state = workers.settle(workers.before())
    return Round(state, workers.requantize(state, epochs=0))


UNTRAINED = Algorithm("untrained", "control: random weights, batch norm settled", untrained, has_clients=False)
