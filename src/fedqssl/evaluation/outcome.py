"""The accuracy of a classifier, class by class, and the calibration of its probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions whose confidence lies in one interval: how many, how sure they were, how often they were right."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """Accuracy, confusion and calibration on one test set.

    Args:
        accuracy: share of correctly classified images; None without test images.
        confusion: (C, C) counts; rows are true classes, columns predicted ones.
        bins: by confidence, low to high; empty ones are left out.
    """

    accuracy: float | None
    confusion: Tensor
    bins: tuple[CalibrationBin, ...]

    @property
    def images(self) -> int:
        """Size of the test set."""
        return int(self.confusion.sum())

    def per_class(self) -> list[float | None]:
        """Accuracy of each class; None for a class without test images."""
        totals = self.confusion.sum(1).tolist()
        right = self.confusion.diagonal().tolist()
        return [r / t if t else None for r, t in zip(right, totals, strict=True)]

    @property
    def calibration_error(self) -> float | None:
        """``ECE = sum_b n_b / n |accuracy_b - confidence_b|`` (Guo et al., 2017); None without test images."""
        return (
            None
            if self.accuracy is None
            else sum(b.count / self.images * abs(b.accuracy - b.confidence) for b in self.bins)
        )

    def to_json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "accuracy": self.accuracy,
            "images": self.images,
            "per_class": self.per_class(),
            "confusion": self.confusion.tolist(),
            "calibration_error": self.calibration_error,
            "calibration_bins": [[b.count, b.confidence, b.accuracy] for b in self.bins],
        }


def outcome(probabilities: Tensor, labels: Tensor) -> Outcome:
    """Evaluate probabilities (N, C) against labels (N,); with N = 0 nothing is known."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        shapes = f"{tuple(probabilities.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"an outcome needs probabilities (N, C) and labels (N,), not {shapes}")
    classes = probabilities.shape[1]
    if not len(labels):
        return Outcome(None, torch.zeros(classes, classes, dtype=torch.int64), ())
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels span [{int(labels.min())}, {int(labels.max())}], but there are {classes} classes")
    sure, answer = probabilities.max(1)
    confusion = torch.bincount(labels * classes + answer, minlength=classes**2).view(classes, classes)
    right = (answer == labels).double()
    place = (sure * BINS).long().clamp(0, BINS - 1)
    bins = []
    for b in range(BINS):
        inside = place == b
        if count := int(inside.sum()):
            bins.append(CalibrationBin(count, float(sure[inside].mean()), float(right[inside].mean())))
    return Outcome(float(right.mean()), confusion, tuple(bins))


__all__ = ["CalibrationBin", "Outcome", "outcome"]
