"""The server's three operators (Algorithm 1, lines 12-14), one file each: de-quantize, aggregate, re-quantize."""

from fedqssl.federated.server.aggregate import average, softmax_weights
from fedqssl.federated.server.dequantize import dequantize, read_state
from fedqssl.federated.server.requantize import requantize, write_state

__all__ = ["average", "dequantize", "read_state", "requantize", "softmax_weights", "write_state"]
