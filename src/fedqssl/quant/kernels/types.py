"""What kernels take and return; shared by all backends."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


def _single(value: float) -> float:
    """The nearest float32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


GROUP = 32
"""Blocks of rows whose sums are added up before those of other groups: see :func:`block_rows`."""


def block_rows(channels: int) -> int:
    """Rows of a (rows, channels) matrix that a sum over rows adds up in float32, one after the other.

    Sums of blocks are added in float64, in order: first those of a group of :data:`GROUP` blocks, then those of the groups. All
    kernels keep to this order, so that batch norm has the same bits on each of them.
    """
    return max(4096 // channels // 8 * 8, 8)


def extra_bits(bits: int) -> int:
    """Mantissa bits beyond a 16-bit key that the quantile tables of this many bits resolve: 0 up to 6, 4 from 10 on."""
    return min(max(bits - 6, 0), 4)


def ends_finite(centres: Tensor) -> Tensor:
    """Whether the first and the last of some quantiles are finite, and so all: a tensor, for which nobody has to wait."""
    return torch.isfinite(centres[0]) & torch.isfinite(centres[-1])


GradientCentres = Literal["quantile", "mean"]
"""What stands for a gradient's entries: its quantiles (the paper), or the means of cells of equal weight."""


@dataclass(frozen=True)
class KeyTable:
    """The quantile quantizer over float keys: floats that share their upper ``16 + extra`` bits share an entry.

    ``values`` and ``codes`` hold, per such key, the centre nearest to the middle of its interval, and that centre's code.
    """

    centres: Tensor  # (2^bits,)
    values: Tensor  # (2^(16 + extra),)
    codes: Tensor  # (2^(16 + extra),)
    extra: int

    def finite(self) -> Tensor:
        """Whether what the table was made of is finite. Tables of the CPU are made of nothing else."""
        return ends_finite(self.centres)


@dataclass(frozen=True)
class Norm:
    """Per-channel coefficients: ``x_hat = y * hat_mul + hat_add``, ``z = x_hat * mul + add``."""

    hat_mul: Tensor
    hat_add: Tensor
    mul: Tensor
    add: Tensor


class Hat(NamedTuple):
    """x_hat as it is kept for the backward pass: packed codes (None without a batch norm), their bits and their step."""

    packed: Tensor | None
    bits: int
    step: float

    @property
    def low(self) -> float:
        """What code 0 stands for; computed in float32, as the compiled kernels do."""
        return -_single(0.5 * (2**self.bits - 1) * _single(self.step))


Coefficients = tuple[Tensor, Tensor, Tensor]
"""Of batch norm's backward, per channel: ``dx = g * mul + x_hat * hat_mul + add``."""


@dataclass(frozen=True)
class NormAct:
    """What follows the affine map of a batch norm.

    ``z`` plus the residual (codes times their step, or values) is clipped to ``[0, (2^bits - 1) / scale]`` and rounded to
    ``code = round(z * scale)``, which stands for ``code * step``. ``bits = 0`` means no activation: z itself comes out.
    For the backward pass (``save``): packed codes, one clip-mask bit each, and x_hat in ``hat_bits`` bits, its code k
    standing for ``(k - (2^hat_bits - 1)/2) * hat_step``. ``values_out`` is a buffer for float outputs, if there is one.
    """

    bits: int
    scale: float
    step: float
    hat_bits: int
    hat_step: float
    save: bool
    want_codes: bool
    want_values: bool
    residual_codes: Tensor | None = None
    residual_values: Tensor | None = None
    residual_step: float = 0.0
    values_out: Tensor | None = None

    @property
    def hat_scale(self) -> float:
        """Codes of x_hat in one standard deviation, ``1 / hat_step``; computed in float32, as the compiled kernels do."""
        return _single(1.0 / _single(self.hat_step))


@dataclass(frozen=True)
class NormActResult:
    """Outputs of ``norm_act``; None where not asked for."""

    values: Tensor | None
    codes: Tensor | None
    packed: Tensor | None
    mask: Tensor | None
    hat: Tensor | None
