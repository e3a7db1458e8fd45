"""Images for worker processes: one copy on this machine, mapped by all of them.

A worker would otherwise read and decode the data set again: minutes for large ones, and its memory once more. Anything can be
shared: large tensors inside it (images, labels, who holds which) go to one temporary file unless they are mapped from a file
already, the rest is pickled.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from fedqssl.data.mapped import Place, place_of

LARGE = 1 << 16
"""Tensors of at least this many bytes go to the file."""
_ALIGNED = 64
_DTYPES = (torch.uint8, torch.int64)


@dataclass(frozen=True)
class Shared:
    """What a worker receives: a pickled object, and where its large tensors are mapped from."""

    pickled: bytes
    places: tuple[Place, ...]

    def open(self) -> Any:
        """The object, with its images mapped; writing to them changes this process's copy only."""
        unpickler = pickle.Unpickler(io.BytesIO(self.pickled))
        unpickler.persistent_load = lambda number: self.places[number].map()  # type: ignore[method-assign]
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """A pickler that sets large tensors aside."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        """The number of a large tensor; None for everything else, which is pickled."""
        if not (isinstance(value, Tensor) and value.dtype in _DTYPES and value.nbytes >= LARGE):
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
        places = []
        try:
            with os.fdopen(os.dup(self.handle), "wb") as file:
                for tensor in pickler.tensors:
                    if (place := place_of(tensor)) is None:
                        file.write(bytes(-file.tell() % _ALIGNED))
                        values = tensor.contiguous().numpy()
                        place = Place(path, file.tell(), values.shape, str(values.dtype))
                        file.write(values.data)
                    places.append(place)
        except OSError as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise OSError(
                f"the images for the workers cannot be written to {tempfile.gettempdir()} ({error.strerror or error}): "
                "free some space there, set TMPDIR to another folder, or workers = 1 in config.toml"
            ) from error
        return Shared(out.getvalue(), tuple(places))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.handle)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


__all__ = ["Shared", "SharedImages"]
