"""What a user would have without us: the accuracies that a model has to beat.

Controls see the same images and labels as a model's classifier does, and are tested on the same test images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.evaluation.classifier import logistic_accuracy

CELLS, BINS = 8, 9
"""Cells along each side of an image, and directions that a cell tells apart (9 are Dalal & Triggs')."""
RAW_SIDE = 16
"""Side that raw pixels are averaged down to, so that the regression takes seconds at any size of image."""
_CLIP = 0.2


@dataclass(frozen=True)
class Controls:
    """Accuracies without pre-training, in [0, 1].

    Args:
        chance: one in the number of classes.
        commonest: always the class that is commonest in the training labels.
        pixels: logistic regression on raw pixels.
        hog: logistic regression on histograms of oriented gradients.
    """

    chance: float
    commonest: float
    pixels: float
    hog: float

    def to_json(self) -> dict[str, float]:
        """As plain numbers."""
        return asdict(self)


WORDS = {
    "chance": "guessing",
    "commonest": "always answering the commonest class",
    "untrained": "the untrained network",
    "pixels": "logistic regression on raw pixels",
    "hog": "logistic regression on HOG features",
}
"""Controls as a sentence names them."""
SHORT = {
    "chance": "chance",
    "commonest": "commonest class",
    "untrained": "untrained",
    "pixels": "raw pixels",
    "hog": "HOG",
}
"""Controls as charts and tables name them."""
FEW_STEPS = 500
"""With fewer steps behind a model than this, nothing else is worth changing first."""
SLACK = 0.01
"""kNN accuracy is an estimate: this much below the untrained network's is no reason to warn."""


def best_control(controls: Mapping[str, float]) -> tuple[str, float]:
    """Name and accuracy of the best control."""
    return max(controls.items(), key=lambda item: item[1])


class Measured(NamedTuple):
    """An accuracy with its name and its controls."""

    name: str
    accuracy: float
    controls: Mapping[str, float]

    @property
    def worth(self) -> bool:
        """Whether it beats every control."""
        return self.accuracy > best_control(self.controls)[1]

    def words(self) -> str:
        """``global accuracy of 38.9% does not beat logistic regression on HOG features (45.0%)``."""
        name, best = best_control(self.controls)
        how = "beats the best control," if self.worth else "does not beat"
        return f"{self.name} of {100 * self.accuracy:.1f}% {how} {WORDS[name]} ({100 * best:.1f}%)"


def verdict(measured: Sequence[Measured], steps: int | None = None, knn_gain: float | None = None) -> str:
    """Whether a run was worth it, in a plain sentence; if it was not, another one says what to try first.

    Args:
        measured: the accuracies of the run.
        steps: training steps, one after the other, that its model is made of.
        knn_gain: its kNN accuracy minus that of the untrained network.
    """
    found = f"The {'; the '.join(m.words() for m in measured)}."
    if all(m.worth for m in measured):
        return found
    if steps is not None and steps < FEW_STEPS:
        return (
            f"{found} Train longer first: its model is made of only {steps} steps (rounds, local_steps, server.steps)."
        )
    if knn_gain is not None and knn_gain < 0:
        return f"{found} By kNN, training made the features worse: try {_VIEWS}."
    return (
        f"{found} Try views that suit the images (views.preset), a larger width, or features=pyramid if it had others."
    )


_VIEWS = "views that suit the images (views.preset) and a smaller ssl.temperature"


def knn_warning(knn: float | None, untrained: float | None) -> str | None:
    """A warning if kNN accuracy has fallen below the untrained network's; None where one of them was not measured."""
    if knn is None or untrained is None or not knn < untrained - SLACK:
        return None
    return f"kNN accuracy, {100 * knn:.1f}%, is below the untrained network's {100 * untrained:.1f}%; try {_VIEWS}"


def measure_controls(
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    num_classes: int,
    seed: int = 0,
) -> Controls:
    """All controls on one split; seconds for a few thousand images.

    Args:
        train_images: uint8 (N, C, H, W).
        train_labels: (N,) in [0, num_classes).
        test_images: uint8 (M, C, H, W).
        test_labels: (M,).
        num_classes: number of classes.
        seed: of the cross-validation that chooses the weight decay.
    """
    for name, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels)):
        if images.dtype != torch.uint8 or images.ndim != 4 or labels.shape != images.shape[:1] or not len(images):
            kind = f"{images.dtype} {tuple(images.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"{name} images must be uint8 (N > 0, C, H, W) with labels (N,), not {kind}")
    commonest = int(train_labels.bincount(minlength=num_classes).argmax())
    found = [
        logistic_accuracy(make(train_images), train_labels, make(test_images), test_labels, num_classes, seed)
        for make in (raw_pixels, hog)
    ]
    return Controls(1 / num_classes, float((test_labels == commonest).double().mean()), *found)


def raw_pixels(images: Tensor) -> Tensor:
    """Pixels in [0, 1], averaged down to at most 16x16, (N, C * 256)."""
    side = min(RAW_SIDE, *images.shape[-2:])
    return F.adaptive_avg_pool2d(images.float() / 255, side).flatten(1)


def hog(images: Tensor, cells: int = CELLS, bins: int = BINS) -> Tensor:
    """Histograms of oriented gradients (Dalal & Triggs, CVPR 2005), (N, cells^2 * bins).

    Central differences of the square root of each channel; a pixel votes with its strongest channel, by the size of its
    gradient, for the direction (0 to 180 degrees) that it points in, shared between the two nearest. Blocks of 2x2 cells are
    normalised to length 1, cut off at 0.2 and normalised again; a cell is the mean over its blocks, which
    leaves a third of the numbers.
    """
    x = (images.float() / 255).sqrt()
    dx, dy = torch.zeros_like(x), torch.zeros_like(x)
    dx[..., 1:-1] = x[..., 2:] - x[..., :-2]
    dy[..., 1:-1, :] = x[..., 2:, :] - x[..., :-2, :]
    size, channel = torch.hypot(dx, dy).max(1, keepdim=True)  # (N, 1, H, W)
    place = torch.atan2(dy.gather(1, channel), dx.gather(1, channel)) * (bins / torch.pi) - 0.5
    low = place.floor()
    votes = torch.zeros(len(x), bins, *x.shape[-2:])
    for step, share in ((0, 1 - (place - low)), (1, place - low)):
        votes.scatter_add_(1, (low.long() + step) % bins, size * share)
    grid = F.adaptive_avg_pool2d(votes, cells)  # (N, bins, cells, cells)
    blocks = F.unfold(grid, 2)  # (N, 4 bins, blocks)
    blocks = F.normalize(F.normalize(blocks, dim=1).clamp(max=_CLIP), dim=1)
    held = F.fold(torch.ones_like(blocks[:1]), (cells, cells), 2)
    return (F.fold(blocks, (cells, cells), 2) / held).flatten(1)


__all__ = [
    "SHORT",
    "WORDS",
    "Controls",
    "Measured",
    "best_control",
    "hog",
    "knn_warning",
    "measure_controls",
    "raw_pixels",
    "verdict",
]
