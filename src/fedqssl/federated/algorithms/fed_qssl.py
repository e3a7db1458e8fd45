"""Fed-QSSL: personalized federated learning under bitwidth and data heterogeneity (Chen, Vikalo, Wang).

Algorithm 1, one round: clients train in s_k bits; the server de-quantizes each model on D_g, averages with ``softmax(-L_DQ)``
weights, re-quantizes to each bitwidth.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedqssl.federated.algorithms.base import Algorithm, Round, Workers
from fedqssl.federated.server.aggregate import average, softmax_weights


def fed_qssl(
    payloads: Mapping[str, bytes],
    bits: Mapping[str, int],
    samples: Mapping[str, int],
    workers: Workers,
    temperature: float,
) -> Round:
    """Lines 11 to 14: collect, de-quantize, aggregate, re-quantize."""
    dequantized = workers.dequantize(payloads, bits)
    losses = {name: loss for name, (_, loss) in dequantized.items()}
    weights = softmax_weights(losses, temperature)
    state = average({name: state for name, (state, _) in dequantized.items()}, weights)
    return Round(state, workers.requantize(state, set(bits.values())), weights, losses)


FED_QSSL = Algorithm("fed_qssl", "de-quantize, weigh by softmax(-loss), average, re-quantize (the paper)", fed_qssl)
