"""What kernels take and return; shared by all backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


def extra_bits(bits: int) -> int:
    """Mantissa bits beyond a 16-bit key that the quantile tables of this many bits resolve: 0 up to 6, 4 from 10 on."""
    return min(max(bits - 6, 0), 4)


@dataclass(frozen=True)
class KeyTable:
    """The quantile quantizer over float keys: floats that share their upper ``16 + extra`` bits share an entry.

    ``values`` and ``codes`` hold, per such key, the centre nearest to the middle of its interval, and that centre's code.
    """

    centres: Tensor  # (2^bits,)
    values: Tensor  # (2^(16 + extra),)
    codes: Tensor  # (2^(16 + extra),)
    extra: int


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


@dataclass(frozen=True)
class NormActResult:
    """Outputs of ``norm_act``; None where not asked for."""

    values: Tensor | None
    codes: Tensor | None
    packed: Tensor | None
    mask: Tensor | None
    hat: Tensor | None
