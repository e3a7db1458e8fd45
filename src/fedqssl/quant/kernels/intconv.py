"""Integer convolution of codes: oneDNN's uint8 x int8 kernel, where a start-up probe finds it exact.

The operator behind it is private to torch, and without VNNI it adds pairs of products in 16 bits, silently saturating: a
pair fits only while ``2 * max(x) * max(|w|) <= 32767``. So it is probed once per process with the largest codes that we
would ever give it, and everything else falls back to float convolution of the same integers.

Weights of 8 bits, ``2k - 255``, are no int8, but ``2 (k - 128) + 1`` is: the integer convolution also gives the sum of x under
the kernel's window, and :func:`.reference.odd_sums` adds it. Where pairs of such products would saturate, the weights go in two
parts, ``4 h + l`` with ``|h| <= 64`` and l in {1, 3}, which is slower. Both give the same integer, and so the same floats
unless one of the parts passes 2^24, from where float32 rounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_PAIR_LIMIT = 32767


def fits(x_max: int, w_max: int) -> bool:
    """Whether codes up to ``x_max`` and weights up to ``w_max`` in size fit the kernel's arithmetic."""
    return x_max <= 255 and w_max <= 127 and 2 * x_max * w_max <= _PAIR_LIMIT


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in the kernel's own layout, with what it adds and multiplies per output channel."""

    weights: Tensor
    scales: Tensor
    zeros: Tensor


def prepack(
    w: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    scale: float,
    shape: Sequence[int],
) -> Packed:
    """Integer weights (int8) for inputs of this shape, and the scale of the output."""
    scales = torch.full((w.shape[0],), scale)
    packed = torch.ops.onednn.qconv_prepack(w, scales, 1.0, 0, stride, padding, dilation, groups, list(shape))
    return Packed(packed, scales, torch.zeros(w.shape[0], dtype=torch.int64))


def conv2d(
    x: Tensor, w: Packed, stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], groups: int
) -> Tensor:
    """``scale * conv2d(x, w)`` for uint8 x (channels_last) and packed weights; float32 output, channels_last."""
    shape = (stride, padding, dilation, groups)
    out: Tensor = torch.ops.onednn.qconv2d_pointwise(
        x, 1.0, 0, w.weights, w.scales, w.zeros, None, *shape, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


@dataclass(frozen=True, eq=False)
class OddPacked:
    """Odd weights of 8 bits: integer weights whose sums :func:`.reference.odd_sums` joins to those of ``channels`` outputs."""

    weights: Packed
    channels: int
    factor: float
    scale: float


def prepack_odd(
    codes: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    x_max: int,
    scale: float,
    shape: Sequence[int],
) -> OddPacked:
    """Weights ``2k - 255`` of 8-bit codes k (no groups), for inputs up to ``x_max``."""
    out = len(codes)
    single = 2 * x_max * 128 <= _PAIR_LIMIT or wide()
    w = torch.ones(out + 1 if single else 2 * out, *codes.shape[1:], dtype=torch.int8)
    centred = torch.bitwise_xor(codes, 128, out=w[:out].view(torch.uint8)).view(torch.int8)  # k - 128
    if not single:
        w[out:] += (centred & 1) * 2
        centred >>= 1
    packed = prepack(w, stride, padding, dilation, 1, 1.0, shape)
    return OddPacked(packed, out, 2.0 if single else 4.0, scale)


def _exact(x_max: int, w_max: int, channels: int, out: int, groups: int, stride: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, x_max + 1, (2, channels, 9, 9), dtype=torch.uint8, generator=generator)
    x[0] = x_max
    w = torch.randint(-w_max, min(w_max, 127) + 1, (out, channels // groups, 3, 3), generator=generator)
    w[0], w[1] = min(w_max, 127), -w_max
    x = x.contiguous(memory_format=torch.channels_last)
    steps = (stride, stride), (1, 1), (1, 1), groups
    got = conv2d(x, prepack(w.to(torch.int8), *steps, 0.5, x.shape), *steps)
    want = F.conv2d(x.double(), w.double(), None, *steps) * 0.5
    return torch.equal(got.double(), want.float().double())


@lru_cache(maxsize=1)
def _probe() -> tuple[bool, str]:
    try:
        cases = [(127, 127, 16, 16, 1, 1), (255, 63, 3, 8, 1, 1), (63, 63, 32, 24, 1, 2), (15, 15, 8, 8, 8, 1)]
        wrong = [case for case in cases if not _exact(*case)]
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return False, f"operator not usable: {str(error).splitlines()[0]}"
    return (False, f"probe not exact: {wrong[0]}") if wrong else (True, "probed exact up to 7 bits")


def available() -> bool:
    """Whether the operator exists here and the probe found it exact."""
    return _probe()[0]


def detail() -> str:
    """The result of the probe as text."""
    return _probe()[1]


@lru_cache(maxsize=1)
def wide() -> bool:
    """Whether the operator is exact for all of uint8 x int8, as with VNNI: probed, with and without many channels."""
    cases = [(3, 17, 1), (16, 17, 1), (64, 65, 2), (40, 33, 1)]
    return available() and all(_exact(255, 128, channels, out, 1, stride) for channels, out, stride in cases)


def wide_detail() -> str:
    """How weights of 8 bits are convolved here, as text."""
    if not available():
        return "in floats"
    return "in integers" if wide() else "in integers, in two parts"
