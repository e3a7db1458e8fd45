"""FedProx: federated optimization in heterogeneous networks (Li et al., MLSys 2020).

FedAvg whose clients minimise ``F_k(w) + mu/2 |w - w_received|^2`` (their Eq. 2). The term acts on the parameters x that the codes
stand for, and on batch norm and biases; ``mu = 0`` is FedAvg bit for bit.
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average
from fedqssl.federated.client import ClientMetrics, train_locally
from fedqssl.federated.job import ClientData, Job
from fedqssl.federated.task import SUPERVISED
from fedqssl.lowbit import to_bytes


def fed_prox(payload: bytes, job: Job, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """The client's part: the optimiser adds ``mu (w - w_received)`` to every gradient."""
    model, metrics = train_locally(payload, job, data, job.proximal)
    return to_bytes(model), metrics


FED_PROX = Algorithm(
    "fed_prox",
    "FedProx",
    "supervised; FedAvg with a proximal term (fedprox.mu)",
    plain_average,
    client=fed_prox,
    objective=SUPERVISED,
    keeps="proximal",
    needs_sums_only=True,
    revision=1,  # the proximal term also acts in the local evaluation
)
