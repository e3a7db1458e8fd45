"""Signals that need no labels: do two views of an image agree, and have the features collapsed?

Wang & Isola, "Understanding contrastive representation learning through alignment and uniformity", ICML 2020;
effective rank: Roy & Vetterli, EUSIPCO 2007.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_RANK = 2.0
"""An effective rank below this is a collapse: one direction holds nearly everything."""


@dataclass(frozen=True)
class Collapse:
    """Alignment (0 is best), uniformity (lower is better, 0 is a collapse to one point), effective rank (of ``dim``)."""

    alignment: float
    uniformity: float
    effective_rank: float
    dim: int

    def to_json(self) -> dict[str, float]:
        """As plain numbers."""
        return asdict(self)

    def warning(self) -> str | None:
        """A warning if the features have collapsed."""
        if self.effective_rank < MIN_RANK:
            return (
                f"the features have collapsed: their effective rank is {self.effective_rank:.1f} of {self.dim}; lower lr, "
                "raise batch_size, or check that the images differ"
            )
        return None


def alignment(x: Tensor, y: Tensor) -> float:
    """``E |f(v) - f(v')|^2`` over the two views of an image, on the unit sphere: 0 if they always agree, 2 if unrelated."""
    difference = F.normalize(x.double(), dim=1) - F.normalize(y.double(), dim=1)
    return float(difference.square().sum(1).mean())


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """``log E exp(-t |f(u) - f(v)|^2)`` over pairs of different images, on the unit sphere: 0 if all are equal."""
    z = F.normalize(x.double(), dim=1)
    return float(torch.pdist(z).square().mul(-t).exp().mean().log())


def effective_rank(x: Tensor) -> float:
    """``exp(H(p))``, p the normalised singular values of the centred features: how many directions are really used, 1..dim."""
    s = torch.linalg.svdvals(x.double() - x.double().mean(0))
    if float(s.sum()) <= 1e-12 * max(float(x.double().abs().max()), 1e-300) * len(s):
        return 1.0  # all rows are equal
    p = s / s.sum()
    p = p[p > 0]
    return float((-(p * p.log()).sum()).exp())


def collapse_signals(x: Tensor, y: Tensor) -> Collapse:
    """All three indicators, from the features of two views of the same images (N, dim)."""
    if x.shape != y.shape or x.ndim != 2 or len(x) < 2:
        raise ValueError(
            f"needs the features of two views of at least 2 images, not {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("features hold NaN or infinity; the model diverged, lower its learning rate")
    return Collapse(alignment(x, y), uniformity(x), effective_rank(x), x.shape[1])


__all__ = ["Collapse", "alignment", "collapse_signals", "effective_rank", "uniformity"]
