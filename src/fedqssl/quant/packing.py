"""Packing codes into bytes: exactly ``ceil(n*s/8)`` of them for every s in 1..16.

Bit order: code i occupies bits ``[i*s, (i+1)*s)`` of the stream, least significant bit first; bit j of the stream is bit
``j % 8`` of byte ``j // 8``; unused bits of the last byte are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedqssl.quant.kernels import ops
from fedqssl.quant.rounding import check_bits


def packed_size(n: int, bits: int) -> int:
    """Bytes that ``n`` codes of ``bits`` bits take: ``ceil(n*bits/8)``."""
    return (n * bits + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integer codes in ``0..2^bits - 1`` of any shape into a flat uint8 tensor."""
    check_bits(bits)
    if codes.is_floating_point() and not torch.equal(codes, codes.round()):
        raise ValueError("codes must be integers; round them first")
    if codes.dtype != torch.uint8 or bits < 8:
        wide = codes.to(torch.int64) if codes.dtype != torch.uint8 else codes
        if wide.numel() and not (int(wide.min()) >= 0 and int(wide.max()) < 2**bits):
            raise ValueError(f"codes of {bits} bits must lie in 0..{2**bits - 1}")
        codes = codes.to(torch.int32).to(torch.uint8 if bits <= 8 else torch.uint16)
    return pack_own(codes, bits)


def pack_own(codes: Tensor, bits: int) -> Tensor:
    """:func:`pack` of uint8 or uint16 codes that were made here: not checked, as that would mean to wait for a GPU."""
    packed: Tensor = ops(codes).pack(codes.flatten(), bits)
    return packed


def _check_packed(packed: Tensor, bits: int, shape: Sequence[int]) -> int:
    n = math.prod(shape)
    if packed.dtype != torch.uint8 or packed.numel() != packed_size(n, check_bits(bits)):
        raise ValueError(
            f"{n} codes of {bits} bits take {packed_size(n, bits)} uint8 bytes, not {packed.numel()} of {packed.dtype}"
        )
    return n


def unpack(packed: Tensor, bits: int, shape: Sequence[int]) -> Tensor:
    """Inverse of :func:`pack`: uint8 codes up to 8 bits, uint16 above.

    Args:
        packed: flat uint8 tensor of exactly ``packed_size(n, bits)`` bytes.
        bits: of each code.
        shape: of the tensor of codes, with n entries.
    """
    n = _check_packed(packed, bits, shape)
    codes: Tensor = ops(packed).unpack(packed.contiguous(), bits, n)
    return codes.view(tuple(shape))


def quantize_pack(x: Tensor, bits: int) -> Tensor:
    """``quantize_s`` of floats in [0, 1] (values outside are clipped), packed in one pass."""
    check_bits(bits)
    flat = x.detach().to(torch.float32).contiguous().flatten()
    packed: Tensor = ops(flat).quantize_pack(flat, bits, float(2**bits - 1))
    return packed


def unpack_dequantize(packed: Tensor, bits: int, shape: Sequence[int], scale: float = 1.0) -> Tensor:
    """``scale * code / (2^bits - 1)`` as float32: inverse of :func:`quantize_pack` up to rounding."""
    n = _check_packed(packed, bits, shape)
    values: Tensor = ops(packed).unpack_affine(packed.contiguous(), bits, n, scale / (2**bits - 1), 0.0)
    return values.view(tuple(shape))
