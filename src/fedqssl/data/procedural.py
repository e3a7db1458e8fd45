"""A small labelled image set drawn by formula: no download, no files, the same bytes for the same seed."""

from __future__ import annotations

import torch
from torch import Tensor

CLASSES = ("disc", "ring", "square", "frame", "triangle", "cross", "stripes", "checks")


def shapes(count: int, seed: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Draw one shape per image, in random colours, place, size and angle, over a noisy background.

    Colours (a bright shape on a dark ground) say nothing about the class, so a model has to see form.

    Args:
        count: number of images; the classes take turns, so they are balanced.
        seed: other seeds give other images of the same kind, e.g. a test set.
        size: height and width.

    Returns:
        Images (count, 3, size, size) uint8 and labels (count,) int64 into ``CLASSES``.
    """
    if count < 1 or size < 8:
        raise ValueError(f"shapes needs count >= 1 and size >= 8, not {count} and {size}")
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    labels = torch.arange(count) % len(CLASSES)
    line = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(line, line, indexing="ij")  # (size, size) each
    angle, scale = uniform(-0.4, 0.4, 1, 1), uniform(0.45, 0.75, 1, 1)
    x = (x - uniform(-0.25, 0.25, 1, 1)) / scale  # (count, size, size)
    y = (y - uniform(-0.25, 0.25, 1, 1)) / scale
    mask = _mask(x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos(), labels)[:, None]
    front, back = uniform(0.6, 1, 3, 1, 1), uniform(0, 0.4, 3, 1, 1)
    noise = 0.06 * torch.randn(count, 3, size, size, generator=generator)
    pixels = torch.where(mask, front, back) + noise
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8), labels


def _mask(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """Where the shape is, in its own coordinates with radius about 1; (N, S, S) -> bool (N, S, S)."""
    radius, edge = (x.square() + y.square()).sqrt(), torch.maximum(x.abs(), y.abs())
    square = edge < 0.85
    wave_x, wave_y = (torch.sin(4 * torch.pi * t) > 0 for t in (x, y))
    drawn = torch.stack(
        [
            radius < 1,
            (radius < 1) & (radius > 0.6),
            square,
            square & (edge > 0.5),
            (y < 0.8) & (y > 2 * x.abs() - 1),
            (torch.minimum(x.abs(), y.abs()) < 0.28) & (edge < 1),
            square & wave_x,
            square & (wave_x ^ wave_y),
        ]
    )  # (classes, N, S, S), in the order of CLASSES
    return drawn[labels, torch.arange(len(labels))]


__all__ = ["CLASSES", "shapes"]
