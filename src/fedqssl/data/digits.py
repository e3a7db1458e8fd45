"""The data set ``digits``: 1,797 real handwritten digits that come with scikit-learn; small, grey, offline."""

from __future__ import annotations

import numpy as np
import torch

from fedqssl.data.images import DataError, ImageSet, resized
from fedqssl.data.pixels import import_extra

_TEST_EVERY = 5


def digits(split: str = "train", size: int = 32) -> ImageSet:
    """One split of the digits as (N, 1, size, size); every fifth image is a test image.

    Args:
        split: ``train`` (1,438 images) or ``test`` (359 images).
        size: the 8x8 originals are enlarged to this height and width.

    Raises:
        DataError: scikit-learn is not installed, or the split is unknown.
    """
    if split not in ("train", "test"):
        raise DataError(f"digits has no split '{split}'; use train or test")
    bunch = import_extra("sklearn.datasets", "scikit-learn", "the digits data set").load_digits()
    grey = np.rint(np.asarray(bunch.images) * (255 / 16)).astype(np.uint8)  # 0..16 -> 0..255
    held_out = np.arange(len(grey)) % _TEST_EVERY == _TEST_EVERY - 1
    chosen = held_out if split == "test" else ~held_out
    images = torch.from_numpy(grey[chosen])[:, None]  # (N, 1, 8, 8)
    labels = torch.from_numpy(np.asarray(bunch.target)[chosen].astype(np.int64))
    return resized(ImageSet(images, labels, tuple(str(i) for i in range(10))), size)


__all__ = ["digits"]
