"""Pictures of any kind and size to the pixels that a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedqssl.data.folder import SUFFIXES
from fedqssl.data.images import DataError, ImageSet, grey, resized, with_channels
from fedqssl.data.pixels import decode


def find_pictures(sources: Iterable[Path]) -> list[Path]:
    """The files themselves, and all pictures below the folders, in order of their names.

    Raises:
        DataError: no such file, or a folder without pictures.
    """
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES and not _hidden(p, source))
            if not inside:
                raise DataError(f"{source}: no images here; supported are {', '.join(sorted(SUFFIXES))}")
            found += inside
        elif source.is_file():
            found.append(source)
        else:
            raise DataError(f"{source}: no such file or folder; pass images, or a folder of them")
    if not found:
        raise DataError("no images were given; pass image files, or a folder of them")
    return found


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in path.relative_to(root).parts)


def from_encoded(source: bytes | Path, where: str, size: int, channels: int) -> Tensor:
    """One picture file as uint8 (channels, size, size); ``where`` names it in errors."""
    pixels = decode(source, where, size)
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return with_channels(image[None], channels)[0]


def from_array(values: Any, size: int, channels: int) -> Tensor:
    """A uint8 array (H, W), (H, W, C) or tensor (C, H, W) as uint8 (channels, size, size)."""
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
    return with_channels(resized(ImageSet(tensor[None]), size).images, channels)[0]


def one_picture(item: Any, where: str, size: int, channels: int) -> Tensor:
    """A path, encoded bytes, pillow image, array or tensor as uint8 (channels, size, size)."""
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


__all__ = ["batches", "find_pictures", "from_encoded", "grey", "one_picture", "with_channels"]
