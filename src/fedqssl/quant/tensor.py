"""A quantized tensor: integer codes and the codebook that says what they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.quant.packing import pack, unpack
from fedqssl.quant.rounding import check_bits


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """Codes of ``bits`` bits (uint8 up to 8 bits, uint16 above) with a codebook of at most ``2^bits`` centres."""

    codes: Tensor
    codebook: Tensor
    bits: int

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if self.codebook.dim() != 1 or self.codebook.numel() > 2**self.bits:
            raise ValueError(
                f"a codebook of {self.bits} bits has at most {2**self.bits} entries in one dimension, "
                f"not shape {tuple(self.codebook.shape)}"
            )

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that the codes stand for."""
        return self.codes.shape

    def dequantize(self) -> Tensor:
        """The float view: ``codebook[codes]``."""
        return self.codebook[self.codes.to(torch.int64)]

    def pack(self) -> Tensor:
        """The codes alone, in exactly ``ceil(n * bits / 8)`` bytes; bit order as in :mod:`fedqssl.quant.packing`."""
        return pack(self.codes, self.bits)

    @classmethod
    def unpack(cls, packed: Tensor, bits: int, shape: Sequence[int], codebook: Tensor) -> QuantizedTensor:
        """Inverse of :meth:`pack`."""
        return cls(unpack(packed, bits, shape), codebook, bits)
