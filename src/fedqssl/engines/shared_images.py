"""Images for worker processes: one copy on this machine, mapped by all of them.

A worker would otherwise read and decode the data set again: minutes for large ones, and its memory once more. Anything can be
shared: large image tensors inside it go to one temporary file, the rest is pickled.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

LARGE = 1 << 16
"""Image tensors of at least this many bytes go to the file."""


@dataclass(frozen=True)
class Shared:
    """What a worker receives: a pickled object, and the file that its image tensors are mapped from."""

    pickled: bytes
    path: str
    shapes: tuple[tuple[int, ...], ...]

    def open(self) -> Any:
        """The object, with its images mapped; writing to them changes this process's copy only."""
        unpickler = pickle.Unpickler(io.BytesIO(self.pickled))
        starts = np.cumsum([0, *map(math.prod, self.shapes)]).tolist()

        def mapped(place: int) -> Tensor:
            images = np.memmap(self.path, np.uint8, mode="c", offset=starts[place], shape=self.shapes[place])
            return torch.from_numpy(images)

        unpickler.persistent_load = mapped  # type: ignore[method-assign]
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """A pickler that sets large image tensors aside."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        """The place of a large image tensor in the file; None for everything else, which is pickled."""
        if not (isinstance(value, Tensor) and value.dtype is torch.uint8 and value.numel() >= LARGE):
            return None
        known = [i for i, tensor in enumerate(self.tensors) if tensor is value]
        if not known:
            self.tensors.append(value)
        return known[0] if known else len(self.tensors) - 1


class SharedImages:
    """An object whose images are in a temporary file for as long as this is open."""

    def __init__(self, value: Any) -> None:
        self.value = value
        handle, name = tempfile.mkstemp(prefix="fedqssl-", suffix=".images")
        self.handle, self.path = handle, Path(name)

    def __enter__(self) -> Shared:
        path = str(self.path)
        if sys.platform == "linux":  # no name is needed there, so that a killed run leaves no file behind
            path = f"/proc/{os.getpid()}/fd/{self.handle}"
            self.path.unlink()
        out = io.BytesIO()
        pickler = _Pickler(out)
        pickler.dump(self.value)
        try:
            with os.fdopen(os.dup(self.handle), "wb") as file:
                for images in pickler.tensors:
                    file.write(images.contiguous().numpy().data)
        except OSError as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise OSError(
                f"the images for the workers cannot be written to {tempfile.gettempdir()} ({error.strerror or error}): "
                "free some space there, set TMPDIR to another folder, or workers = 1 in config.toml"
            ) from error
        return Shared(out.getvalue(), path, tuple(tuple(images.shape) for images in pickler.tensors))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.handle)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


__all__ = ["Shared", "SharedImages"]
