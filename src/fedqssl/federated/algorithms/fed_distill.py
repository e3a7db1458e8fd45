"""Fed-Distill: ensemble similarity distillation (FLESD, Shi et al., 2022) into the average (FedDF, Lin et al., NeurIPS 2020).

Which images the clients' models find alike is knowledge that survives where parameters do not agree. The aggregate starts at the
average by shares p_k and learns the clients' similarities of the buffer's images. With ``z^k_i`` the output of client k's model,
in its own bits, for image i of a batch of B, and ``z_i``, ``z'_i`` the aggregate's outputs for two views of it:

    P_ij = sum_k p_k exp(cos(z^k_i, z^k_j) / T) / (the sum over j),    T = ``distill.temperature``
    Q_ij = softmax_j(cos(z_i, z'_j) / tau),    Q'_ij = softmax_j(cos(z'_i, z_j) / tau),    tau = ``ssl.temperature``
    L = -1/(2B) sum_ij P_ij (log Q_ij + log Q'_ij)

Teachers are sharpened by exp before they are averaged, as in FLESD, whose clients send similarities instead of models. As T goes
to 0, L becomes InfoNCE between the two views. Models are handed out rounded to nearest, as by Fed-Refine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, on_one_model
from fedqssl.federated.server.aggregate import NothingToAggregateError, average
from fedqssl.federated.state import State


def targets(teachers: Mapping[str, Tensor], weights: Mapping[str, float], temperature: float) -> Tensor:
    """``P`` (B, B) of the teachers' outputs (B, d) by client; every row sums to 1."""
    total = torch.zeros(())
    for name, z in sorted(teachers.items()):
        unit = F.normalize(z.float(), dim=1)
        sharp = torch.exp((unit @ unit.T - 1) / temperature)  # -1: a factor that all teachers share, against overflow
        total = total + weights[name] * sharp
    return total / total.sum(1, keepdim=True)


def distillation_loss(outputs: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """``L`` of the aggregate's outputs (2B, d), rows i and i + B being the views of image i, against ``P`` (B, B)."""
    one, two = F.normalize(outputs, dim=1).chunk(2)
    cosine = one @ two.T / temperature  # (B, B)
    both = cosine.log_softmax(1) + cosine.T.log_softmax(1)
    return -(wanted * both).sum() / (2 * len(one))


def fed_distill(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Average, let the average learn from all models together, round to bits."""
    outputs = operators.embed(arrived.payloads)
    teachers = {name: z for name, z in outputs.items() if bool(z.isfinite().all())}
    rejected = {name: "its outputs for the buffer are not finite" for name in outputs if name not in teachers}
    if not teachers:
        raise NothingToAggregateError("nothing to aggregate: no client's model has finite outputs for the buffer")
    weights, states = arrived.shares(teachers), operators.read({name: arrived.payloads[name] for name in teachers})
    steps, temperature = operators.server_steps(len(teachers)), operators.context.config.distill.temperature

    @functools.cache  # once, not in every step
    def moved(device: torch.device) -> dict[str, Tensor]:
        return {name: z.to(device) for name, z in teachers.items()}

    def loss(student: Tensor, index: Tensor) -> Tensor:
        wanted = targets({name: z[index] for name, z in moved(student.device).items()}, weights, temperature)
        return distillation_loss(student, wanted, operators.context.task.temperature)

    def refine(w: State) -> tuple[State, float]:
        return operators.train(w, "buffer", steps=steps, loss=loss)

    w, hand_out, learn = average(states, weights), operators.round_to_bits, refine if steps else None
    return state, Round(w, hand_out, weights=weights, parts=states, refine=learn, rejected=rejected)


def _work(config: RunConfig, participants: int) -> RoundWork:
    """The products of the teachers' outputs with each other are left out: they are as small as those of the objective."""
    return on_one_model(config, RoundWork(participants, passes=1))


FED_DISTILL = Algorithm(
    "fed_distill",
    "Fed-Distill",
    "the average learns on the buffer which images the clients' models find alike",
    fed_distill,
    work=_work,
)
