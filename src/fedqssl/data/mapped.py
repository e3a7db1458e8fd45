"""Images that stay in their file: mapped, so that a process holds only those that it looks at, and all processes share them."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 32 << 20
"""Bytes from which an array of images is mapped; smaller ones are read, and their checksums verified."""
_PIECE = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where an array lies in a file."""

    path: str
    start: int
    shape: tuple[int, ...]
    dtype: str = "uint8"

    @property
    def nbytes(self) -> int:
        """Its length."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def map(self) -> Tensor:
        """The array, mapped; writing to it changes this process's copy only."""
        if not self.nbytes:
            return torch.from_numpy(np.empty(self.shape, self.dtype))
        found = torch.from_numpy(np.memmap(self.path, self.dtype, mode="c", offset=self.start, shape=self.shape))
        found.place = self  # type: ignore[attr-defined]
        return found


def place_of(tensor: Tensor) -> Place | None:
    """The file that a tensor was mapped from as a whole, if it was."""
    found: Any = getattr(tensor, "place", None)
    return found if isinstance(found, Place) else None


def raw(tensor: Tensor) -> Iterator[bytes | memoryview]:
    """The bytes of a tensor, in pieces; those of a mapped one are read from its file, so that its pages are not kept."""
    place = place_of(tensor)
    if place is None:
        yield tensor.contiguous().numpy().data
        return
    left = place.nbytes
    with open(place.path, "rb") as file:
        file.seek(place.start)
        while left and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield piece


def place_in_npz(path: Path, name: str) -> Place | None:
    """Where a large uint8 array lies in an ``.npz`` file; None if it must be read: it is small, compressed or of another kind.

    Raises:
        ValueError, OSError, KeyError, zipfile.BadZipFile: this is not such a file.
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED or member.file_size < LARGE:
        return None
    with path.open("rb") as file:
        file.seek(member.header_offset)
        local = struct.unpack("<26xHH", file.read(30))  # lengths of the name and of what follows it
        start = member.header_offset + 30 + sum(local)
        file.seek(start)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        place = Place(str(path.absolute()), file.tell(), shape)
    whole = place.start + place.nbytes == start + member.file_size <= path.stat().st_size
    return place if whole and dtype == np.uint8 and not fortran else None


__all__ = ["LARGE", "Place", "place_in_npz", "place_of", "raw"]
