"""One picture of any kind (a file, encoded bytes, a pillow image, an array, a tensor) as uint8 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedqssl.data.images import DataError, ImageSet, resized, with_channels
from fedqssl.data.pixels import decode


def from_encoded(source: bytes | Path, where: str, size: int | None, channels: int) -> Tensor:
    """One picture file as uint8 (channels, size, size), or in its own size; ``where`` names it in errors."""
    pixels = decode(source, where, size)
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return with_channels(image[None], channels)[0]


def from_array(values: Any, size: int | None, channels: int) -> Tensor:
    """A uint8 array (H, W), (H, W, C) or tensor (C, H, W) as uint8 (channels, size, size), or in its own size."""
    tensor = torch.from_numpy(np.array(values)) if not isinstance(values, Tensor) else values
    if tensor.dtype != torch.uint8:
        raise DataError(f"images must be uint8 (0..255), not {tensor.dtype}; multiply by 255 and convert")
    if tensor.ndim == 2:
        tensor = tensor[None]
    elif tensor.ndim == 3 and not isinstance(values, Tensor):
        tensor = tensor.permute(2, 0, 1)
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3) or 0 in tensor.shape:
        raise DataError(
            f"an image is an array (H, W) or (H, W, 1 or 3), or a tensor (1 or 3, H, W); not {tuple(tensor.shape)}"
        )
    image = tensor[None] if size is None else resized(ImageSet(tensor[None]), size).images
    return with_channels(image, channels)[0]


def one_picture(item: Any, where: str, size: int | None, channels: int) -> Tensor:
    """A path, encoded bytes, pillow image, array or tensor as uint8 (channels, size, size), or in its own size."""
    if isinstance(item, (str, Path)):
        path = Path(item)
        if not path.is_file():
            raise DataError(f"{path}: no such file; pass images, or a folder of them")
        return from_encoded(path, str(path), size, channels)
    if isinstance(item, (bytes, bytearray)):
        return from_encoded(bytes(item), where, size, channels)
    if hasattr(item, "convert") and hasattr(item, "size"):
        item = np.asarray(item.convert("RGB"))
    return from_array(item, size, channels)


__all__ = ["from_array", "from_encoded", "one_picture"]
