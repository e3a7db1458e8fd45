"""The paper's analysis (Sec. 4, App. A) as runnable checks, in float64; imports nothing above ``fedqssl.quant``.

>>> import torch
>>> from fedqssl.studies.theory import optimum, representability
>>> w = optimum(torch.diag(torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)), m=2)
>>> representability(w).round().tolist()
[1.0, 1.0, 0.0]
"""

from fedqssl.studies.theory.checks import CHECKS, claim_folder, run_checks, write
from fedqssl.studies.theory.data import (
    ClientData,
    Sources,
    blended_data,
    client_data,
    expected_covariance,
    printed_covariance,
)
from fedqssl.studies.theory.fedavg import Precision, Steps, Trace, initial_weights, run_fedavg
from fedqssl.studies.theory.lemma1 import lemma1
from fedqssl.studies.theory.model import (
    align,
    covariance,
    global_covariance,
    gradient,
    hessian_product,
    minimum,
    objective,
    optimum,
    ssl_objective,
    ssl_objective_sampled,
    weak_convexity,
)
from fedqssl.studies.theory.moreau import Envelope, check_smoothness, moreau
from fedqssl.studies.theory.representability import (
    EncoderRepresentability,
    encoder_representability,
    lower_bound,
    printed_bound,
    representability,
)
from fedqssl.studies.theory.settings import Settings, parse_bits
from fedqssl.studies.theory.supervised import supervised_features
from fedqssl.studies.theory.theorem1 import theorem1
from fedqssl.studies.theory.theorem2 import theorem2

__all__ = [
    "CHECKS",
    "ClientData",
    "EncoderRepresentability",
    "Envelope",
    "Precision",
    "Settings",
    "Sources",
    "Steps",
    "Trace",
    "align",
    "blended_data",
    "check_smoothness",
    "claim_folder",
    "client_data",
    "covariance",
    "encoder_representability",
    "expected_covariance",
    "global_covariance",
    "gradient",
    "hessian_product",
    "initial_weights",
    "lemma1",
    "lower_bound",
    "minimum",
    "moreau",
    "objective",
    "optimum",
    "parse_bits",
    "printed_bound",
    "printed_covariance",
    "representability",
    "run_checks",
    "run_fedavg",
    "ssl_objective",
    "ssl_objective_sampled",
    "supervised_features",
    "theorem1",
    "theorem2",
    "weak_convexity",
    "write",
]
