"""The server's operators, one file each: de-quantize, aggregate, re-quantize (Algorithm 1, lines 11-14).

Before them an upload is checked (``validate``, ``plausible``), after them the aggregate (``usable``).
"""

from fedqssl.federated.server.aggregate import NothingToAggregateError, average, softmax_weights
from fedqssl.federated.server.dequantize import dequantize
from fedqssl.federated.server.fine_tune import fine_tune, settle
from fedqssl.federated.server.plausible import check_values
from fedqssl.federated.server.requantize import requantize
from fedqssl.federated.server.usable import UnusableAggregateError, check_usable
from fedqssl.federated.server.validate import check_model

__all__ = [
    "NothingToAggregateError",
    "UnusableAggregateError",
    "average",
    "check_model",
    "check_usable",
    "check_values",
    "dequantize",
    "fine_tune",
    "requantize",
    "settle",
    "softmax_weights",
]
