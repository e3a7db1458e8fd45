"""Pictures of any kind and size to the pixels that a model takes, without torch; as :mod:`fedqssl.data.pictures` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedqssl.data.errors import DataError
from fedqssl.data.pixels import decode
from fedqssl.device.lean.tensors import Array

SPREAD, LEAST = 0.2, 4 / 255
"""As in ``fedqssl.models.contrast``."""
_LUMA = np.array([19595, 38470, 7471], np.int64)
"""ITU-R 601's integer weights, like pillow's."""


def _shares(before: int, after: int) -> Array:
    """The share (after, before) of every pixel in every pixel of a resized row: a triangle, as wide as a pixel becomes."""
    scale = before / after
    support = max(scale, 1.0)
    centres = (np.arange(after) + 0.5) * scale
    away = np.abs(np.arange(before) + 0.5 - centres[:, None]) / support
    shares = np.clip(1 - away, 0, None)
    shares /= shares.sum(1, keepdims=True)
    found: Array = shares.astype(np.float32)
    return found


def resized(image: Array, size: int) -> Array:
    """The centre square of uint8 pixels (H, W, C) as (size, size, C), antialiased bilinear."""
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[top : top + side, left : left + side].astype(np.float32)
    shares = _shares(side, size)
    across = np.einsum("jw,hwc->hjc", shares, square, optimize=True)
    values = np.einsum("ih,hjc->ijc", shares, across, optimize=True)
    found: Array = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return found


def stretched(pixels: Array) -> Array:
    """uint8 images (N, H, W, C) with the mean and spread of :class:`fedqssl.models.contrast.Stretch`, again in uint8."""
    x = pixels.astype(np.float32) / np.float32(255)
    mean = x.mean((1, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    std = np.sqrt(np.square(x - mean).mean((1, 2, 3), dtype=np.float64, keepdims=True)).astype(np.float32)
    y = np.clip((x - mean) * (np.float32(SPREAD) / np.maximum(std, np.float32(LEAST))) + np.float32(0.5), 0, 1)
    found: Array = np.rint(y * np.float32(255)).astype(np.uint8)
    return found


def with_channels(image: Array, channels: int) -> Array:
    """Pixels (H, W, 1 or 3) with as many channels as a model takes: luma, or grey three times."""
    if image.shape[2] == channels:
        return image
    if channels == 1:
        luma: Array = (((image.astype(np.int64) * _LUMA).sum(2, keepdims=True) + 0x8000) >> 16).astype(np.uint8)
        return luma
    return np.repeat(image, 3, axis=2)


def _from_array(values: Any, size: int, channels: int) -> Array:
    array = np.asarray(values)
    if array.dtype != np.uint8:
        raise DataError(f"images must be uint8 (0..255), not {array.dtype}; multiply by 255 and convert")
    image = array[:, :, None] if array.ndim == 2 else array
    if image.ndim != 3 or image.shape[2] not in (1, 3) or 0 in image.shape:
        raise DataError(f"an image is an array (H, W) or (H, W, 1 or 3); not {array.shape}")
    return with_channels(resized(image, size), channels)


def one_picture(item: Any, where: str, size: int, channels: int) -> Array:
    """A path, encoded bytes, pillow image or array as uint8 pixels (size, size, channels)."""
    if isinstance(item, (str, Path)):
        path = Path(item)
        if not path.is_file():
            raise DataError(f"{path}: no such file; pass images, or a folder of them")
        return with_channels(decode(path, str(path), size), channels)
    if isinstance(item, (bytes, bytearray)):
        return with_channels(decode(bytes(item), where, size), channels)
    if hasattr(item, "convert") and hasattr(item, "size"):
        item = np.asarray(item.convert("RGB"))
    return _from_array(item, size, channels)


__all__ = ["one_picture", "resized", "stretched", "with_channels"]
