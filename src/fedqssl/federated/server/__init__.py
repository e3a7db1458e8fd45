"""The server's operators, one file each: validate, de-quantize, aggregate, re-quantize (Algorithm 1, lines 11-14)."""

from fedqssl.federated.server.aggregate import average, softmax_weights
from fedqssl.federated.server.dequantize import dequantize
from fedqssl.federated.server.fine_tune import fine_tune, settle
from fedqssl.federated.server.requantize import requantize
from fedqssl.federated.server.validate import check_model

__all__ = ["average", "check_model", "dequantize", "fine_tune", "requantize", "settle", "softmax_weights"]
