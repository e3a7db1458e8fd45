"""Images in memory: what every reader returns and every partition splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.data.errors import DataError, DataWarning


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Decoded images and, if the source has them, their labels.

    Args:
        images: (N, C, H, W) uint8 with C = 1 or 3.
        labels: (N,) int64, or None for an unlabeled set.
        class_names: the name of each label, or None if the source has none.
        groups: the natural client of each image (a folder or a metadata value), or None if the source has none.
        bursts: the burst of each image, which no split may divide, or None if there are none.
    """

    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    bursts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_images(self.images)
        count = len(self.images)
        if self.labels is not None:
            _check_labels(self.labels, count, self.class_names)
        for what, names in (("group", self.groups), ("burst", self.bursts)):
            if names is not None and len(names) != count:
                raise DataError(f"{len(names)} {what}s for {count} images; pass one {what} per image")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int | None:
        """Number of classes: that of the class names if they are known, else the largest label + 1; None without labels."""
        if self.labels is None:
            return None
        if self.class_names is not None:
            return len(self.class_names)
        return int(self.labels.max()) + 1 if len(self.labels) else 0

    def subset(self, indices: Tensor | Sequence[int]) -> ImageSet:
        """The images at these positions, in this order, with all that belongs to them."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        if chosen.ndim != 1:
            raise DataError(f"subset takes a flat list of positions, not shape {tuple(chosen.shape)}")
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self):
            low, high = int(chosen.min()), int(chosen.max())
            raise DataError(
                f"positions {low} to {high} are outside this set of {len(self)} images; use 0 to {len(self) - 1}"
            )
        labels = None if self.labels is None else self.labels[chosen]
        named = (self.groups, self.bursts)
        groups, bursts = (None if of is None else tuple(of[i] for i in chosen.tolist()) for of in named)
        return ImageSet(self.images[chosen], labels, self.class_names, groups, bursts)


def _check_images(images: Tensor) -> None:
    if images.dtype != torch.uint8:
        raise DataError(f"images must be uint8, not {images.dtype}; scale to 0..255 and convert")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(f"images must be (N, 1 or 3, H, W), not {tuple(images.shape)}; reorder or convert the channels")


def _check_labels(labels: Tensor, count: int, names: tuple[str, ...] | None) -> None:
    if labels.dtype != torch.int64:
        raise DataError(f"labels must be int64, not {labels.dtype}; convert them")
    if labels.shape != (count,):
        raise DataError(f"labels must be ({count},) like the images, not {tuple(labels.shape)}; pass one per image")
    if not count:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise DataError(f"labels must not be negative, but the smallest is {low}; drop the labels of an unlabeled set")
    if names is not None and high >= len(names):
        raise DataError(f"label {high} has no name among {len(names)} class names; name every class")


def drawn(count: int, images: int | None) -> Tensor | None:
    """Positions of at most ``images`` of so many, in order and always the same; None for all of them."""
    if images is not None and images < 1:
        raise DataError(f"images must be at least 1, not {images}; leave it out to take all")
    if images is None or images >= count:
        return None
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:images].sort().values


def at_most(data: ImageSet, images: int | None) -> ImageSet:
    """At most so many images of a set; the set itself if it has no more."""
    keep = drawn(len(data), images)
    return data if keep is None else data.subset(keep)


def resized(data: ImageSet, size: int) -> ImageSet:
    """The same set with images of ``size x size`` (centre square, antialiased bilinear); the set itself if they already are."""
    if size < 1:
        raise DataError(f"size must be at least 1, not {size}; 32 is usual")
    height, width = data.images.shape[2:]
    if (height, width) == (size, size):
        return data
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = data.images[:, :, top : top + side, left : left + side]
    pieces = [
        F.interpolate(piece.float(), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for piece in torch.split(square, 1000)
    ]
    empty = data.images.new_empty((0, data.images.shape[1], size, size))
    return replace(data, images=torch.cat([empty, *pieces]))


def grey(pixels: Tensor) -> Tensor:
    """Luma of RGB images (N, 3, H, W) as (N, 1, H, W), in ITU-R 601's integer weights, like pillow's."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int64).view(1, 3, 1, 1)
    return ((pixels.to(torch.int64) * weights).sum(1, keepdim=True) + 0x8000 >> 16).to(torch.uint8)


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Images (N, 1 or 3, H, W) with as many channels as a model takes: luma, or grey three times."""
    if pixels.shape[1] == channels:
        return pixels
    return grey(pixels) if channels == 1 else pixels.expand(-1, 3, -1, -1).contiguous()


__all__ = ["DataError", "DataWarning", "ImageSet", "at_most", "drawn", "grey", "resized", "with_channels"]
