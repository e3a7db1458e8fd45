"""How many bits a client computes in, and how those bits are used."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from fedqssl.lowbit.skip import check_skip
from fedqssl.quant.compand import COMPANDERS
from fedqssl.quant.kernels.types import GradientCentres
from fedqssl.quant.rounding import MAX_BITS, Rounding, check_rounding

FULL = 32
Weights = Literal["level", "value", "literal"]

HAT_STEPS = {1: 1.596, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}
"""Cell of the uniform quantizer with least error for a unit Gaussian (Max 1960), by bits: for the kept batch-norm input."""


def _check(name: str, bits: int) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not (1 <= bits <= MAX_BITS or bits == FULL):
        raise ValueError(f"{name} bits must be a whole number from 1 to {MAX_BITS}, or {FULL}; not {bits!r}")


@dataclass(frozen=True)
class Precision:
    """Bits of weights, activations and gradients; 32 means full precision, and is all or nothing."""

    weight: int
    activation: int
    gradient: int

    def __post_init__(self) -> None:
        for name in ("weight", "activation", "gradient"):
            _check(name, getattr(self, name))
        if len({b == FULL for b in (self.weight, self.activation, self.gradient)}) > 1:
            raise ValueError(f"full precision (32) cannot be mixed with low bits: {self}")

    @classmethod
    def for_bits(cls, s: int) -> Precision:
        """The paper's choice: weights and activations in s bits, gradients in ``min(s + 2, 16)`` (Sec. 3)."""
        _check("s", s)
        return cls(s, s, FULL if s == FULL else min(s + 2, MAX_BITS))

    @property
    def full(self) -> bool:
        """Whether this is full precision."""
        return self.weight == FULL


@dataclass(frozen=True)
class LowBitOptions:
    """Interpretations of the paper used to build a model (``docs/decisions.md`` has the measurements behind the defaults).

    Args:
        weights: what enters a convolution: the ``level`` in [-1, 1] (Eq. 2), the companded ``value`` (App. A.1), or the
            ``literal`` Eq. 2 applied to its own output (drifts; for reference only).
        compander: ``tanh`` (the paper) or ``identity`` (uniform quantization).
        activation_clip: the c of the activation ``h(z) = clip(z / c, 0, 1)``; the same at every precision.
        activation_quantizer: ``uniform`` (Sec. 3: h then quantize_s) or ``tanh`` (Algorithm 2, line 5:
            ``tanh(relu(z))``, then quantize_s).
        bn_saved_bits: bits of batch norm's normalized input that is kept for the backward pass, 1..8; by default one
            less than the activation's bits, between 2 and 8 (with the clip mask, 2s bits per activation are kept).
        gradient_rounding: ``nearest`` centre or ``stochastic`` between neighbours.
        gradient_centres: what stands for a gradient's entries: its quantiles (``quantile``, the paper) or the means of cells
            between quantiles and those of least error (``mean``).
        quantize_input: the model's input is an image in [0, 1], taken as 8-bit codes.
        skip: modules that stay in floats with everything inside them, by name or pattern (``heads.*``).
    """

    weights: Weights = "level"
    compander: str = "tanh"
    activation_clip: float = 4.0
    activation_quantizer: Literal["uniform", "tanh"] = "uniform"
    bn_saved_bits: int | None = None
    gradient_rounding: Rounding = "nearest"
    quantize_input: bool = True
    skip: tuple[str, ...] = ()
    gradient_centres: GradientCentres = "quantile"

    def __post_init__(self) -> None:
        if self.weights not in ("level", "value", "literal"):
            raise ValueError(f"weights must be 'level', 'value' or 'literal', not {self.weights!r}")
        if self.compander not in COMPANDERS:
            raise ValueError(f"compander must be one of {sorted(COMPANDERS)}, not {self.compander!r}")
        if not 0 < self.activation_clip < float("inf"):
            raise ValueError(f"activation_clip must be positive and finite, not {self.activation_clip}")
        if self.activation_quantizer not in ("uniform", "tanh"):
            raise ValueError(f"activation_quantizer must be 'uniform' or 'tanh', not {self.activation_quantizer!r}")
        if self.bn_saved_bits is not None and self.bn_saved_bits not in HAT_STEPS:
            raise ValueError(f"bn_saved_bits must be 1..8, not {self.bn_saved_bits!r}")
        check_rounding(self.gradient_rounding)
        if self.gradient_centres not in ("quantile", "mean"):
            raise ValueError(f"gradient_centres must be 'quantile' or 'mean', not {self.gradient_centres!r}")
        if self.gradient_centres == "mean" and self.gradient_rounding != "nearest":
            raise ValueError("gradient_centres='mean' takes gradient_rounding='nearest' only")
        check_skip(self.skip)

    def hat_bits(self, activation_bits: int) -> int:
        """Bits of the kept batch-norm input for activations of this many bits."""
        return self.bn_saved_bits or min(max(activation_bits - 1, 2), 8)

    def to_json(self) -> str:
        """As containers have it; newer options only where they are not at their defaults, so that bytes are those of before."""
        newer = {"skip": (), "gradient_centres": "quantile"}
        values = asdict(self)
        return json.dumps({k: v for k, v in values.items() if k not in newer or v != newer[k]}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LowBitOptions:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError, TypeError, RecursionError: the text is not what :meth:`to_json` makes.
        """
        values = json.loads(text)
        return cls(**{**values, "skip": tuple(values.get("skip", ()))})
