"""Plain averaging of the same low-bit clients (Fed-SimCLR as in the paper's Table 1; McMahan et al. 2017 for the averaging).

The server does no work on its buffer: it averages parameters with weights |D_k| / |D| and rounds the mean to each bitwidth.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedqssl.federated.algorithms.base import Algorithm, Round, Workers
from fedqssl.federated.server.aggregate import average


def fed_simclr(
    payloads: Mapping[str, bytes],
    bits: Mapping[str, int],
    samples: Mapping[str, int],
    workers: Workers,
    temperature: float,
) -> Round:
    """FedAvg of the parameters that the codes stand for."""
    total = sum(samples[name] for name in payloads)
    weights = {name: samples[name] / total for name in sorted(payloads)}
    state = average(workers.read(payloads, bits), weights)
    return Round(state, workers.requantize(state, set(bits.values()), epochs=0), weights)


FED_SIMCLR = Algorithm("fed_simclr", "average the same low-bit clients, no server training", fed_simclr)
