"""Uniform quantization (Sec. 3): ``quantize_s(r) = round((2^s - 1) r) / (2^s - 1)`` for r in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from fedqssl.quant.kernels.reference import code_dtype
from fedqssl.quant.rounding import Rounding, check_bits, round_to_grid
from fedqssl.quant.tensor import QuantizedTensor


def uniform_quantize(
    r: Tensor, bits: int, rounding: Rounding = "nearest", generator: torch.Generator | None = None
) -> QuantizedTensor:
    """Codes ``k = round((2^s - 1) r)`` with codebook ``k / (2^s - 1)``.

    Args:
        r: a tensor of any shape; clipped to [0, 1].
        bits: s, 1 to 16.
        rounding: ``nearest`` or ``stochastic``.
        generator: source of random numbers for stochastic rounding.
    """
    top = 2 ** check_bits(bits) - 1
    r = r.detach()
    codes = round_to_grid(r * top, top, rounding, generator)
    codebook = torch.arange(top + 1, dtype=r.dtype, device=r.device) / top
    return QuantizedTensor(codes.to(torch.int32).to(code_dtype(bits)), codebook, bits)


def quantize_s(
    r: Tensor, bits: int, rounding: Rounding = "nearest", generator: torch.Generator | None = None
) -> Tensor:
    """The paper's ``quantize_s``: the float view of :func:`uniform_quantize`."""
    return uniform_quantize(r, bits, rounding, generator).dequantize()
