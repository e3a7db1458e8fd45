"""Slopes with confidence intervals and a zero-mean test with a stated error rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FAMILY_ERROR = 1e-3
"""Chance that any of the zero-mean tests of a family rejects although all errors have zero mean."""

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def t_quantile(freedom: int) -> float:
    """The 97.5% point of Student's t (table up to 15 degrees of freedom, then its expansion in 1/freedom)."""
    if freedom < 1:
        raise ValueError("a confidence interval needs at least two seeds")
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% confidence interval (Student's t)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """From one value per seed."""
        v = torch.tensor(list(values), dtype=torch.float64)
        half = t_quantile(len(v) - 1) * float(v.std()) / math.sqrt(len(v))
        return cls(float(v.mean()), float(v.mean()) - half, float(v.mean()) + half)

    def to_json(self) -> dict[str, float]:
        """For ``theory.json``."""
        return {"mean": self.mean, "low": self.low, "high": self.high}

    def within(self, target: float, tolerance: float) -> bool:
        """Whether the mean is within ``tolerance`` of ``target``."""
        return abs(self.mean - target) <= tolerance


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of y against x."""
    a, b = torch.tensor(list(x), dtype=torch.float64), torch.tensor(list(y), dtype=torch.float64)
    a = a - a.mean()
    return float((a * (b - b.mean())).sum() / a.square().sum())


def log_slope(x: Sequence[float], variances: Tensor) -> Estimate:
    """Slope of ``log2(variance)`` against x: one per row (seed) of ``variances`` (S, len(x)), then mean and interval."""
    if not bool((variances > 0).all()):
        raise ValueError("an error variance is zero, so it has no slope; use fewer bits or more samples")
    return Estimate.of([slope(x, row.log2().tolist()) for row in variances])


def zero_mean_z(error: Tensor, variance: Tensor, directions: Mapping[str, Tensor]) -> dict[str, float]:
    """``z = sum_i u_i eps_i / sqrt(sum_i u_i^2 Var(eps_i))`` for each direction u; N(0, 1) if every E[eps_i] = 0.

    Several directions, because biases of opposite sign cancel in a plain sum: nearest rounding has a zero mean over a
    symmetric layer and is found only by the direction "towards the nearest centre".
    """
    found = {}
    for name, u in directions.items():
        scale = float((u.square() * variance).sum().sqrt())
        total = float((u * error).sum())
        found[name] = total / scale if scale > 0 else (0.0 if total == 0 else math.copysign(math.inf, total))
    return found


def z_threshold(tests: int, error: float = FAMILY_ERROR) -> float:
    """Two-sided threshold so that ``tests`` tests together reject wrongly with probability at most ``error``."""
    return float(-torch.special.ndtri(torch.tensor(error / (2 * max(tests, 1)), dtype=torch.float64)))


__all__ = ["FAMILY_ERROR", "Estimate", "log_slope", "slope", "t_quantile", "z_threshold", "zero_mean_z"]
