"""Decoded images for worker processes: one copy on this machine, mapped by all of them.

A worker would otherwise read and decode the data set again: minutes for large ones, and its memory once more.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from fedqssl.data.images import ImageSet
from fedqssl.engines.context import Context


@dataclass(frozen=True, eq=False)
class Attachment:
    """What a worker gets: the context without its images, and where they are mapped from."""

    context: Context
    path: str
    train: tuple[int, ...]
    test: tuple[int, ...]

    def open(self) -> Context:
        """The context with the shared images."""
        train = self._mapped(self.context.train, self.train, 0)
        test = self._mapped(self.context.test, self.test, math.prod(self.train))
        return replace(self.context, train=train, test=test)

    def _mapped(self, described: ImageSet, shape: tuple[int, ...], offset: int) -> ImageSet:
        """A set with its images, which begin at this byte of the file."""
        images = torch.empty(shape, dtype=torch.uint8)
        if math.prod(shape):  # nothing cannot be mapped
            images = torch.from_numpy(np.memmap(self.path, dtype=np.uint8, mode="c", offset=offset, shape=shape))
        return ImageSet(images, described.labels, described.class_names)


class SharedImages:
    """A context's images in a temporary file, training set first, for as long as this is open."""

    def __init__(self, context: Context) -> None:
        self.context = context
        handle, name = tempfile.mkstemp(prefix="fedqssl-", suffix=".images")
        self.handle, self.path = handle, Path(name)

    def __enter__(self) -> Attachment:
        train, test = self.context.train, self.context.test
        path = str(self.path)
        if sys.platform == "linux":  # no name is needed there, so that a killed run leaves no file behind
            path = f"/proc/{os.getpid()}/fd/{self.handle}"
            self.path.unlink()
        try:
            with os.fdopen(os.dup(self.handle), "wb") as file:
                for part in (train, test):
                    file.write(part.images.contiguous().numpy().data)
        except OSError as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise OSError(
                f"the images for the workers cannot be written to {tempfile.gettempdir()} ({error.strerror or error}): "
                "make room there, set TMPDIR to another folder, or workers = 1 in config.toml"
            ) from error
        slim = replace(self.context, train=_without_images(train), test=_without_images(test))
        return Attachment(slim, path, tuple(train.images.shape), tuple(test.images.shape))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.handle)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _without_images(part: ImageSet) -> ImageSet:
    # New, since a slice of nothing would take all images along.
    return _Labelled(part.images.new_empty((0, *part.images.shape[1:])), part.labels, part.class_names)


class _Labelled(ImageSet):
    """Labels on their way to a worker, where the images join them again."""

    def __post_init__(self) -> None:
        """Nothing to check: the whole was checked when it was read."""
