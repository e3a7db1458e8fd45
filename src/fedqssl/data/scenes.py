"""The embedded data set ``scenes``: ten materials, drawn by formula; no download, no files.

A class is a texture (stripes, checks, bricks, ...) that fills the whole image, so any two crops of an image share it: contrastive
learning finds exactly what defines the class. Phase, orientation, scale, colours, light and noise are random and
independent of the class, so no fixed pixel is informative: a linear classifier on pixels fails.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedqssl.data.images import DataError, ImageSet

SIZE = 32
BLOCK = 100  # images are drawn in blocks with a generator each: a longer set starts with the shorter one
PERIOD = (5.5, 9.0)  # pixels per repetition of the texture
ANGLE = 0.3  # orientation, in radians either way; any angle at all is much harder to learn without labels
GROUND, FIGURE, TINT = (0.2, 0.35), (0.65, 0.8), 0.05  # brightness of the two colours, and their tint either way
TILT = 0.2  # unevenness of the light
NOISE = 0.05
SPLITS = ("train", "test")

Texture = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""(u, v) of shape (n, S, S), in periods -> a field (n, S, S): positive on the figure, negative on the ground."""


def scenes(count: int, split: str = "train", seed: int = 0) -> ImageSet:
    """Draw the first ``count`` images of a split; the classes take turns, so they are balanced.

    Args:
        count: number of images.
        split: ``train`` or ``test``; both have different images of the same kind.
        seed: each seed gives different images.
    """
    if count < 1:
        raise DataError(f"scenes needs at least 1 image, not {count}")
    if split not in SPLITS:
        raise DataError(f"scenes has no split '{split}'; use train or test")
    blocks = [_block(split, seed, i) for i in range(-(-count // BLOCK))]
    images = torch.cat(blocks)[:count].clone()
    return ImageSet(images, torch.arange(count) % len(CLASSES), CLASSES)


def _block(split: str, seed: int, index: int) -> Tensor:
    """Images (BLOCK, 3, S, S) uint8 of classes 0, 1, ..., 9, 0, 1, ..."""
    digest = hashlib.sha256(f"scenes/{split}/{seed}/{index}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    each = BLOCK // len(CLASSES)
    u, v = _coordinates(generator)
    fields = torch.empty(BLOCK, SIZE, SIZE)
    for label, texture in enumerate(TEXTURES.values()):
        mine = slice(label * each, (label + 1) * each)
        fields[mine] = texture(u[mine], v[mine], generator)
    order = torch.arange(BLOCK).view(len(CLASSES), each).t().reshape(-1)  # class-major -> classes take turns
    return _paint(fields[order], generator)


def _uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=generator)


def _coordinates(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rotated, scaled and shifted positions (BLOCK, S, S) in periods of the texture."""
    line = torch.arange(SIZE) - (SIZE - 1) / 2
    y, x = torch.meshgrid(line, line, indexing="ij")
    angle = _uniform(generator, -ANGLE, ANGLE, BLOCK, 1, 1)
    period = _uniform(generator, *PERIOD, BLOCK, 1, 1)
    shift = _uniform(generator, 0, 1, 2, BLOCK, 1, 1) * 16  # beyond any repetition of a texture
    u = (x * angle.cos() - y * angle.sin()) / period + shift[0]
    v = (x * angle.sin() + y * angle.cos()) / period + shift[1]
    return u, v


def _paint(fields: Tensor, generator: torch.Generator) -> Tensor:
    """Figure and ground in two random colours, under uneven light, with noise; (n, S, S) -> uint8 (n, 3, S, S)."""
    n = len(fields)
    mask = torch.sigmoid(12 * fields)[:, None]  # soft edges
    ground = _uniform(generator, *GROUND, n, 1, 1, 1) + _uniform(generator, -TINT, TINT, n, 3, 1, 1)
    figure = _uniform(generator, *FIGURE, n, 1, 1, 1) + _uniform(generator, -TINT, TINT, n, 3, 1, 1)
    line = torch.linspace(-1, 1, SIZE)
    tilt = _uniform(generator, -TILT, TILT, 2, n, 1, 1, 1)
    light = 1 + tilt[0] * line.view(1, 1, SIZE, 1) + tilt[1] * line.view(1, 1, 1, SIZE)
    pixels = (ground + (figure - ground) * mask) * light
    pixels = pixels + NOISE * torch.randn(n, 3, SIZE, SIZE, generator=generator)
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8)


def _wave(t: Tensor) -> Tensor:
    """Triangle wave of period 1 in [-1, 1]."""
    return 4 * (t - t.floor() - 0.5).abs() - 1


def _cell(t: Tensor) -> Tensor:
    """Offset in [-0.5, 0.5] from the centre of the unit cell."""
    return t - t.floor() - 0.5


def _stripes(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    return _wave(u)


def _checks(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    return 1.5 * _wave(0.7 * u) * _wave(0.7 * v)


def _zigzag(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    return _wave(v + 0.45 * _wave(0.6 * u))


def _dots(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    return 3 * (0.36 - torch.hypot(_cell(u), _cell(v)))


def _rings(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    return 4 * (0.13 - (torch.hypot(_cell(0.8 * u), _cell(0.8 * v)) - 0.32).abs())


def _crosses(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    a, b = _cell(0.8 * u).abs(), _cell(0.8 * v).abs()
    return 4 * torch.minimum(0.13 - torch.minimum(a, b), 0.4 - torch.maximum(a, b))


def _bricks(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    row = v.floor()
    return 4 * torch.minimum(0.5 - _cell(v).abs(), 1.6 * (0.5 - _cell(u / 1.6 + 0.5 * row).abs())) - 0.6


def _weave(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    over = (((u / 1.5).floor() + (v / 1.5).floor()) % 2) == 0
    return torch.where(over, _wave(u * 4 / 3), _wave(v * 4 / 3))


def _cells(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """Edges of a Voronoi diagram of jittered lattice points: distance to the second nearest minus the nearest."""
    n, lattice = len(u), 32
    points = _uniform(generator, 0, 1, 2, n, lattice * lattice)
    column, row = u.floor(), v.floor()
    distances = []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            place = ((row + dy) % lattice * lattice + (column + dx) % lattice).long().view(n, -1)
            px = points[0].gather(1, place).view_as(u) + column + dx
            py = points[1].gather(1, place).view_as(u) + row + dy
            distances.append(torch.hypot(u - px, v - py))
    nearest, second = torch.stack(distances).topk(2, dim=0, largest=False).values
    edge: Tensor = 3 * (second - nearest) - 0.6
    return edge


def _blobs(u: Tensor, v: Tensor, generator: torch.Generator) -> Tensor:
    """Isotropic noise of one wavelength: a sum of plane waves of random directions."""
    n, waves = len(u), 12
    total = torch.zeros_like(u)
    for _ in range(waves):
        angle = _uniform(generator, 0, 2 * torch.pi, n, 1, 1)
        phase = _uniform(generator, 0, 2 * torch.pi, n, 1, 1)
        total += torch.cos(2 * torch.pi * (u * angle.cos() + v * angle.sin()) + phase)
    return total / math.sqrt(waves)


TEXTURES: dict[str, Texture] = {
    "stripes": _stripes,
    "checks": _checks,
    "zigzag": _zigzag,
    "dots": _dots,
    "rings": _rings,
    "crosses": _crosses,
    "bricks": _bricks,
    "weave": _weave,
    "cells": _cells,
    "blobs": _blobs,
}
CLASSES = tuple(TEXTURES)

__all__ = ["CLASSES", "scenes"]
