"""Convolutions of codes on tensor cores: in TF32, where that is exact, and in float32 otherwise.

Claim. Let x be codes, integers in [0, 2^a - 1]; w = 2k - (2^s - 1), odd integers in [-(2^s - 1), 2^s - 1]; and let every output
be a sum of K products (K = channels of a group times kernel height times kernel width). If

    a <= 11,  s <= 11  and  K (2^a - 1)(2^s - 1) <= 2^24,

then a TF32 convolution with float32 accumulation gives every output exactly, in any order of addition.

Proof. TF32 has 11 significant bits (10 of them stored) and float32's exponents, so it holds every integer up to 2^11 exactly: no
operand is rounded. A product has at most 22 significant bits and is an integer; float32, with 24, holds it. Every partial sum,
in whatever order, is an integer of size at most K (2^a - 1)(2^s - 1) <= 2^24, which float32 holds exactly, so no addition
rounds, and an accumulator that truncates has nothing to truncate as long as it keeps float32's 24 bits.

The result times ``scale * step``, one rounding, is what the CPU's integer convolution gives (:mod:`.intconv`): the same
activations, bit for bit. Outside the bound, and in the backward pass, whose gradients are on no grid, float32 is used
(``allow_tf32`` is off). float16 operands have 11 significant bits, too, but torch's float16 convolution also returns float16,
which holds integers only up to 2^11: not exact, so not used.

The last sentence of the proof is about hardware. It was not measured here, so each process probes each GPU with the largest sums
that it would ever be given (:func:`available`), and uses float32 where the probe is not exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_OPERAND = 11
"""Significant bits of a TF32 operand."""
_SUM = 2**24
"""Integers up to this size are float32's."""

Steps = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
"""Stride, padding, dilation and groups of a convolution."""


def exact(x_bits: int, w_bits: int, terms: int) -> bool:
    """Whether the claim above covers codes of so many bits and outputs of so many products."""
    fits = max(x_bits, w_bits) <= _OPERAND
    return fits and terms * (2**x_bits - 1) * (2**w_bits - 1) <= _SUM


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def conv2d(codes: Tensor, w: Tensor, scale: float, steps: Steps) -> Tensor:
    """``scale * conv2d(codes, w)`` of integer codes and integer weights, channels_last; exact sums if :func:`exact`."""
    x = codes.to(torch.float32)
    floats = w.to(torch.float32).contiguous(memory_format=torch.channels_last)
    with _tf32():
        return F.conv2d(x, floats, None, *steps).mul_(scale)


def _worst(device: torch.device, bits: int, channels: int) -> bool:
    """Whether the largest sums of so many channels (3 x 3) are exact on this device."""
    top = 2**bits - 1
    draws = torch.Generator().manual_seed(bits)
    x = torch.randint(0, top + 1, (2, channels, 6, 6), dtype=torch.uint8, generator=draws)
    w = 2 * torch.randint(0, top + 1, (16, channels, 3, 3), generator=draws) - top
    x[0], w[0], w[1] = top, top, -top
    steps: Steps = ((1, 1), (1, 1), (1, 1), 1)
    got = conv2d(x.contiguous(memory_format=torch.channels_last).to(device), w.to(torch.int16).to(device), 1.0, steps)
    return torch.equal(got.cpu().double(), F.conv2d(x.double(), w.double(), None, *steps))


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether the probe found TF32 sums exact on this GPU, up to the bound."""
    if device.type != "cuda":
        return False
    # Channels so that 9 C (2^s - 1)^2 is just below 2^24; multiples of 8, which tensor cores take.
    cases = [(bits, min(_SUM // (9 * (2**bits - 1) ** 2), 512) // 8 * 8) for bits in (4, 6, 7)]
    try:
        return all(_worst(device, bits, channels) for bits, channels in cases)
    except (RuntimeError, AssertionError):  # of a driver, of cuDNN or of torch: float32 is always there
        return False


__all__ = ["Steps", "available", "conv2d", "exact"]
