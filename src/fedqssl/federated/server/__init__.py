"""The server's three operators (Algorithm 1, lines 12-14), one file each: de-quantize, aggregate, re-quantize."""

from fedqssl.federated.server.aggregate import average, softmax_weights
from fedqssl.federated.server.dequantize import dequantize
from fedqssl.federated.server.requantize import requantize

__all__ = ["average", "dequantize", "requantize", "softmax_weights"]
