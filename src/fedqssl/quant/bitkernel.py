"""The paper's bit kernel (Sec. 1.1): products of M-bit and K-bit integers by AND and bit count, in M*K passes.

``x . y = sum_i sum_j 2^(i+j) bitcount(and(x_i, y_j))`` with bit planes ``x_i``, ``y_j``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.quant.kernels import native, ops


def _check_codes(codes: Tensor, bits: int) -> None:
    if codes.dtype != torch.uint8 or not 1 <= bits <= 8:
        raise ValueError(f"the bit kernel takes uint8 codes of 1..8 bits, not {codes.dtype} of {bits} bits")


def bit_planes(codes: Tensor, bits: int) -> Tensor:
    """The ``bits`` planes of 0/1 values of the codes, stacked in front."""
    shifts = torch.arange(bits, device=codes.device).view(-1, *[1] * codes.dim())
    return codes.to(torch.int64).unsqueeze(0) >> shifts & 1


def bit_dot(x: Tensor, y: Tensor, x_bits: int, y_bits: int) -> int:
    """The dot product of two vectors of codes."""
    _check_codes(x, x_bits)
    _check_codes(y, y_bits)
    if x.shape != y.shape:
        raise ValueError(f"vectors of different length: {tuple(x.shape)} and {tuple(y.shape)}")
    if ops(x, y) is native:
        return native.bit_dot(x.contiguous(), y.contiguous(), x_bits, y_bits)
    total = 0
    for i, a in enumerate(bit_planes(x, x_bits)):
        for j, b in enumerate(bit_planes(y, y_bits)):
            total += int((a & b).sum()) << (i + j)
    return total


def _conv_planes(
    x: Tensor, w: Tensor, x_bits: int, w_bits: int, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """The same sums with a float convolution per pair of planes (0/1 values: exact)."""
    total: Tensor | None = None
    for i, a in enumerate(bit_planes(x, x_bits)):
        for j, b in enumerate(bit_planes(w, w_bits)):
            part = F.conv2d(a.double(), b.double(), None, stride, padding, dilation) * 2.0 ** (i + j)
            total = part if total is None else total + part
    assert total is not None
    ones = torch.ones(1, *w.shape[1:], dtype=torch.float64, device=x.device)
    sum_x = F.conv2d(x.double(), ones, None, stride, padding, dilation)
    return total.mul(2).sub(sum_x, alpha=2**w_bits - 1)


def bit_conv2d(
    x: Tensor,
    w: Tensor,
    x_bits: int,
    w_bits: int,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    scale: float = 1.0,
) -> Tensor:
    """``scale * conv2d(x, 2w - (2^w_bits - 1))`` of codes: ``level`` weights are such odd integers.

    Args:
        x: uint8 codes (N, C, H, W).
        w: uint8 codes (O, C, KH, KW).
        x_bits: bits of x, 1 to 8.
        w_bits: bits of w, 1 to 8.
        stride: as for ``conv2d``.
        padding: as for ``conv2d``.
        dilation: as for ``conv2d``.
        scale: multiplies the result.

    Returns:
        Floats (N, O, OH, OW), channels_last.
    """
    _check_codes(x, x_bits)
    _check_codes(w, w_bits)
    if x.dim() != 4 or w.dim() != 4 or x.shape[1] != w.shape[1]:
        raise ValueError(f"channels do not match: input {tuple(x.shape)}, weight {tuple(w.shape)}")
    size = [
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1 for d in range(2)
    ]
    if min(size) < 1:
        raise ValueError(f"a kernel of {tuple(w.shape[2:])} is larger than the padded input {tuple(x.shape[2:])}")
    if ops(x, w) is not native:
        out = _conv_planes(x, w, x_bits, w_bits, list(stride), list(padding), list(dilation)) * scale
        return out.float().contiguous(memory_format=torch.channels_last)
    out = torch.empty(x.shape[0], *size, w.shape[0])  # (N, OH, OW, O)
    x_rows, w_rows = x.permute(0, 2, 3, 1).contiguous(), w.permute(0, 2, 3, 1).contiguous()
    native.bit_conv2d(x_rows, w_rows, out, (*stride, *padding, *dilation), (x_bits, w_bits), scale)
    return out.permute(0, 3, 1, 2)
