"""What an s-bit number is: quantizers, codes, packing and the kernels behind them. Knows nothing about networks.

>>> import torch
>>> from fedqssl.quant import TANH, compand_quantize
>>> q = compand_quantize(torch.tensor([-0.5, 0.0, 0.2, 0.5]), bits=4, compander=TANH)
>>> q.codes.tolist(), q.pack().numel()
([0, 8, 11, 15], 2)
"""

from fedqssl.quant.bitkernel import bit_conv2d, bit_dot
from fedqssl.quant.compand import (
    IDENTITY,
    TANH,
    Compander,
    compand_codes,
    compand_pack,
    compand_quantize,
    compand_scale,
    compand_values,
    literal_quantize,
)
from fedqssl.quant.packing import pack, packed_size, quantize_pack, unpack, unpack_dequantize
from fedqssl.quant.quantile import quantile_centres, quantile_quantize, quantile_round
from fedqssl.quant.rounding import SNAP, Rounding, round_to_grid
from fedqssl.quant.tensor import QuantizedTensor
from fedqssl.quant.uniform import quantize_s, uniform_quantize

__all__ = [
    "IDENTITY",
    "SNAP",
    "TANH",
    "Compander",
    "QuantizedTensor",
    "Rounding",
    "bit_conv2d",
    "bit_dot",
    "compand_codes",
    "compand_pack",
    "compand_quantize",
    "compand_scale",
    "compand_values",
    "literal_quantize",
    "pack",
    "packed_size",
    "quantile_centres",
    "quantile_quantize",
    "quantile_round",
    "quantize_pack",
    "quantize_s",
    "round_to_grid",
    "uniform_quantize",
    "unpack",
    "unpack_dequantize",
]
