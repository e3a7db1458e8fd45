"""Fed-QSSL: personalized federated learning under bitwidth and data heterogeneity (Chen, Vikalo, Wang).

Algorithm 1, one round: clients train in s_k bits; the server de-quantizes each model on D_g, averages with ``softmax(-L_DQ)``
weights, re-quantizes to each bitwidth. The self-supervised loss is the run's ``objective``.
"""

from __future__ import annotations

import math

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork
from fedqssl.federated.server.aggregate import average, softmax_weights
from fedqssl.federated.server.dequantize import steps_each


def fed_qssl(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Lines 11 to 14: collect, de-quantize, aggregate, re-quantize."""
    dequantized = operators.dequantize(arrived.payloads)
    losses = {name: loss for name, (_, loss) in dequantized.items() if math.isfinite(loss)}
    rejected = {name: "its loss on the buffer is not finite" for name in dequantized if name not in losses}
    weights = softmax_weights(losses, arrived.temperature)
    parts = {name: dequantized[name][0] for name in losses}
    w = average(parts, weights)
    return state, Round(w, operators.requantize, weights=weights, losses=losses, rejected=rejected, parts=parts)


def _work(config: RunConfig, participants: int) -> RoundWork:
    server = config.server
    return RoundWork(
        participants,
        dequantize_epochs=server.dequantize_epochs or 0,
        dequantize_steps=steps_each(server.steps or 0, participants),
        requantize_epochs=server.requantize_epochs,
    )


FED_QSSL = Algorithm(
    "fed_qssl",
    "Fed-QSSL",
    "de-quantize, weigh by softmax(-loss), average, re-quantize (the paper)",
    fed_qssl,
    work=_work,
)
