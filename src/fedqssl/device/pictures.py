"""Pictures of any kind and size to the pixels that a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedqssl.data.pictures import one_picture
from fedqssl.device.prediction import find_pictures


def batches(images: Iterable[Any], size: int, channels: int, batch_size: int) -> Iterator[Tensor]:
    """Pictures as uint8 batches (n, channels, size, size), read as they are needed."""
    waiting: list[Tensor] = []
    for number, item in enumerate(images):
        waiting.append(one_picture(item, f"image {number}", size, channels))
        if len(waiting) == batch_size:
            yield torch.stack(waiting)
            waiting = []
    if waiting:
        yield torch.stack(waiting)


__all__ = ["batches", "find_pictures"]
