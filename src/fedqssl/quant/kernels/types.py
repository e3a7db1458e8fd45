"""What kernels take and return; shared by all backends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KeyTable:
    """The quantile quantizer over 16-bit float keys.

    The interval of floats that share a key is cut into ``2^split`` equal parts, finer where more centres lie:
    ``index[key] = start << 4 | split``, and entry ``start + (lower 16 bits >> (16 - split))`` of ``values`` and ``codes`` is
    the centre nearest to the part's middle, and that centre's code. ``by_key`` is a short cut of the compiled
    backend: values by the upper 16 + e bits, and e; None where keys are cut finer than that.
    """

    centres: Tensor  # (2^bits,)
    index: Tensor  # (65536,) by raw key
    values: Tensor  # (entries,)
    codes: Tensor  # (entries,)
    by_key: tuple[Tensor, int] | None = None


@dataclass(frozen=True)
class Norm:
    """Per-channel coefficients: ``x_hat = y * hat_mul + hat_add``, ``z = x_hat * mul + add``."""

    hat_mul: Tensor
    hat_add: Tensor
    mul: Tensor
    add: Tensor


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
