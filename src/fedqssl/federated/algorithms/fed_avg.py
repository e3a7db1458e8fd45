"""FedAvg: communication-efficient learning of deep networks from decentralized data (McMahan et al., AISTATS 2017).

Supervised: the backbone and a classifier are trained with labels in each client's bits; the server averages the parameters that
the codes stand for, ``w = sum_k |D_k|/|D| w_k``, and rounds the mean to each bitwidth.
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.task import SUPERVISED


def plain_average(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """The server's part: no work on the buffer."""
    weights = arrived.shares()
    states = operators.read(arrived.payloads)
    return state, Round(average(states, weights), operators.round_to_bits, weights=weights, parts=states)


FED_AVG = Algorithm(
    "fed_avg",
    "FedAvg",
    "supervised; average by number of images",
    plain_average,
    objective=SUPERVISED,
    needs_sums_only=True,
)
