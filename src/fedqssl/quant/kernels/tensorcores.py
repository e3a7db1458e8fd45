"""Convolutions of codes on tensor cores: in TF32, where that is exact, and in float32 otherwise.

Claim. Let x be codes, integers in [0, 2^a - 1]; w = 2k - (2^s - 1), odd integers in [-(2^s - 1), 2^s - 1]; and let every output
be a sum of K products (K = channels of a group times kernel height times kernel width). If

    a <= 11,  s <= 11  and  K (2^a - 1)(2^s - 1) <= 2^24,

then a TF32 convolution with float32 accumulation gives every output exactly, in any order of addition.

Proof. TF32 has 11 significant bits (10 of them stored) and float32's exponents, so it holds every integer up to 2^11 exactly: no
operand is rounded. A product has at most 22 significant bits and is an integer; float32, with 24, holds it. Every partial sum,
in whatever order, is an integer of size at most K (2^a - 1)(2^s - 1) <= 2^24, which float32 holds exactly, so no addition
rounds, and an accumulator that truncates has nothing to truncate as long as it keeps float32's 24 bits.

The proof is about sums of products. cuDNN chooses an algorithm by the shapes, and may transform its operands first (Winograd,
FFT): these have more bits than a TF32 operand. No setting of torch forbids that, so each shape is tried once in each process, on
the largest codes, before TF32 is used for it (:func:`trusted`).

The result times ``scale * step``, one rounding, is what the CPU's integer convolution gives (:mod:`.intconv`): the same
activations, bit for bit. Outside the bound, and in the backward pass, whose gradients are on no grid, float32 is used
(``allow_tf32`` is off). float16 operands have 11 significant bits, too, but torch's float16 convolution also returns float16,
which holds integers only up to 2^11: not exact, so not used.

What the accumulator keeps is a matter of hardware, which was not measured here. So each process also probes each GPU with the
largest sums that it would ever be given (:func:`available`). float32 is used where a probe is not exact.
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
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _sums(codes: Tensor, w: Tensor, steps: Steps, tf32: bool) -> Tensor:
    floats = w.to(torch.float32).contiguous(memory_format=torch.channels_last)
    with _tf32(tf32):
        return F.conv2d(codes.to(torch.float32), floats, None, *steps)


def conv2d(codes: Tensor, w: Tensor, scale: float, steps: Steps, bits: tuple[int, int]) -> Tensor:
    """``scale * conv2d(codes, w)`` of integer codes and weights of so many bits, channels_last; exact sums if :func:`exact`."""
    tf32 = trusted(codes.device, codes.shape, w.shape, steps, bits)
    return _sums(codes, w, steps, tf32).mul_(scale)


@lru_cache(maxsize=1024)
def trusted(device: torch.device, shape: torch.Size, w_shape: torch.Size, steps: Steps, bits: tuple[int, int]) -> bool:
    """Whether a convolution of these shapes is exact in TF32 on this device, tried on the largest codes of so many bits."""
    top, w_top = (2**b - 1 for b in bits)
    draws = torch.Generator().manual_seed(0)
    two = torch.randint(0, top + 1, (2, *shape[1:]), dtype=torch.int16, generator=draws)
    w = 2 * torch.randint(0, w_top + 1, tuple(w_shape), dtype=torch.int16, generator=draws) - w_top
    two[0], w[0], w[-1] = top, w_top, -w_top
    x = two[torch.arange(shape[0]) % 2].contiguous(memory_format=torch.channels_last)
    got = _sums(x.to(device), w.to(device), steps, tf32=True).cpu()
    want = F.conv2d(two.double(), w.double(), None, *steps).float()
    return all(torch.equal(got[i], want[i % 2]) for i in range(shape[0]))


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether the probe found TF32 sums exact on this GPU, up to the bound."""
    if device.type != "cuda":
        return False
    # Channels so that 9 C (2^s - 1)^2 is just below 2^24; multiples of 8, which tensor cores take.
    cases = [(bits, min(_SUM // (9 * (2**bits - 1) ** 2), 512) // 8 * 8) for bits in (4, 6, 7)]
    steps: Steps = ((1, 1), (1, 1), (1, 1), 1)
    try:
        return all(
            trusted(device, torch.Size((2, c, 6, 6)), torch.Size((16, c, 3, 3)), steps, (bits, bits))
            for bits, c in cases
        )
    except (RuntimeError, AssertionError):  # of a driver, of cuDNN or of torch: float32 is always there
        return False


__all__ = ["Steps", "available", "conv2d", "exact", "trusted"]
