"""FedPAQ: a communication-efficient federated learning method with periodic averaging and quantization (Reisizadeh et al., 2020).

Clients send quantized *updates*: ``Q(w_k - w_received)``, unbiased (stochastic rounding), weights in their own bits, batch norm
and biases as floats like in every row; the server keeps the float model and adds the mean,
``w <- w + sum_k |D_k|/|D| Q(Delta_k)`` (their Eq. 5; weights by number of images as in FedAvg).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.client import ClientMetrics, train_locally
from fedqssl.federated.job import ClientData, Job
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import State, read_payload, read_state, weight_names
from fedqssl.federated.task import SUPERVISED, Task
from fedqssl.federated.updates import check_update, decode_update, encode_update
from fedqssl.lowbit.policy import is_variance


def fed_paq(payload: bytes, job: Job, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """The client's part: train, then send what changed."""
    model, metrics = train_locally(payload, job, data)
    # until here the client keeps what it received as packed bytes
    start = read_payload(payload, data.bits, job.task)
    update = {name: x - start[name] for name, x in read_state(model).items()}
    draws = generator(job.task.seed, "update rounding", data.name, job.round_number)
    return encode_update(update, data.bits, draws, weight_names(model)), metrics


def updated(upload: bytes, received: State, bits: int, task: Task) -> State:
    """The received model plus the update."""
    return {name: received[name] + x for name, x in decode_update(upload).items()}


def add_updates(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """The server's part: the float model plus the mean update."""
    weights = arrived.shares()
    updates = {name: decode_update(payload) for name, payload in arrived.payloads.items()}
    mean = average(updates, weights)
    before = operators.before()
    w = {name: _added(name, x, mean[name]) if name in mean else x for name, x in before.items()}
    parts = {n: {name: before[name] + x for name, x in u.items() if name in before} for n, u in updates.items()}
    return state, Round(w, operators.round_to_bits, weights=weights, parts=parts)


def _added(name: str, x: Tensor, update: Tensor) -> Tensor:
    """Their sum; a variance near 0 may not become negative by rounding."""
    return (x + update).clamp(min=0) if is_variance(name) else x + update


FED_PAQ = Algorithm(
    "fed_paq",
    "FedPAQ",
    "supervised; clients send quantized updates",
    add_updates,
    client=fed_paq,
    check=check_update,
    model_of=updated,
    upload=lambda model, bits: encode_update(read_state(model), bits, torch.Generator(), weight_names(model)),
    objective=SUPERVISED,
    keeps="update",
    revision=1,  # rounds weights only
)
