"""Fed-SimCLR: FedAvg of the same low-bit clients, which train SimCLR (Chen et al., ICML 2020) as in the paper's Table 1."""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average

FED_SIMCLR = Algorithm(
    "fed_simclr",
    "Fed-SimCLR",
    "SimCLR; average by number of images",
    plain_average,
    objective="simclr",
    needs_sums_only=True,
)
