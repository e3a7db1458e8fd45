"""Bursts: photos of one scene, which must never lie on both sides of a split into training and test images.

A *unit* is what moves as one: a burst or, where there are none, a single image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Group = Literal["none", "prefix", "folder"]
"""How a folder's bursts are recognised: ``prefix`` of the files' names in one folder, or the innermost ``folder``."""
SEPARATORS = "_- "


def prefix(name: str) -> str:
    """A file's name up to its last ``_``, ``-`` or space; without one, up to its trailing digits.

    Example:
        >>> [prefix(name) for name in ("lake_001.jpg", "2024-05-01 12.jpg", "frame0012.png", "lake.jpg", "0012.jpg")]
        ['lake', '2024-05-01', 'frame', 'lake', '0012']
    """
    stem = PurePosixPath(name).stem
    cut = max(map(stem.rfind, SEPARATORS))
    return stem[:cut] if cut > 0 else stem.rstrip("0123456789") or stem


def burst_of(relative: PurePosixPath, group: Group) -> str:
    """The burst of a picture at this path below its data set; its own path if it belongs to none."""
    if group == "none":
        return str(relative)
    return str(relative.parent if group == "folder" else relative.parent / prefix(relative.name))


def fitting(sizes: Sequence[int], most: int) -> list[int]:
    """Which units, taken in order, hold at most so many images together; the smallest if none fits, nothing if there is but one.

    Example:
        >>> fitting([3, 2, 1, 1], 4), fitting([5, 4], 2), fitting([9], 2)
        ([0, 2], [1], [])
    """
    found, total = [], 0
    for i, size in enumerate(sizes):
        if total + size <= most:
            found.append(i)
            total += size
    if len(sizes) < 2:
        return []
    return found or [min(range(len(sizes)), key=sizes.__getitem__)]


class Units:
    """The units of so many images.

    Args:
        count: number of images.
        bursts: the burst of each, or None if there are none.
    """

    def __init__(self, count: int, bursts: Sequence[str] | None) -> None:
        keys = np.arange(count) if bursts is None else np.asarray(bursts)
        _, self.first, of, self.sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        self._order = np.argsort(of, kind="stable")  # unit after unit
        self._starts = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return len(self.first)

    def images(self, units: np.ndarray) -> Tensor:
        """Positions of the images of these units, in order."""
        chosen = np.unique(units)
        sizes = self.sizes[chosen]
        before = np.cumsum(sizes) - sizes
        places = np.repeat(self._starts[chosen] - before, sizes) + np.arange(sizes.sum())
        return torch.from_numpy(np.sort(self._order[places]))

    def count(self, units: np.ndarray) -> int:
        """Number of images of these units."""
        return int(self.sizes[units].sum())


__all__ = ["Group", "Units", "burst_of", "fitting", "prefix"]
