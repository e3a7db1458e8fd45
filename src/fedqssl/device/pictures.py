"""Pictures of any kind and size to the pixels that a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedqssl.data.folder import SUFFIXES
from fedqssl.data.images import DataError
from fedqssl.data.pictures import one_picture


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
