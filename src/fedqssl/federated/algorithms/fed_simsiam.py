"""Fed-SimSiam: FedAvg of the same low-bit clients, which train SimSiam (Chen & He, CVPR 2021) as in the paper's Table 1.

The stop-gradient and the predictor g are part of the objective (``fedqssl.ssl.simsiam``).
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average

FED_SIMSIAM = Algorithm(
    "fed_simsiam",
    "Fed-SimSiam",
    "SimSiam; average by number of images",
    plain_average,
    objective="simsiam",
    needs_sums_only=True,
)
