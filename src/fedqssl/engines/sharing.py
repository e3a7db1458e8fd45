"""Decoded images for worker processes: one copy on this machine, mapped by all of them.

A worker would otherwise read and decode the data set again: minutes for large ones, and its memory once more.
"""

from __future__ import annotations

import contextlib
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
    shape: tuple[int, ...]

    def open(self) -> Context:
        """The context with the shared training images; workers never see the test set."""
        mapped = np.memmap(self.path, dtype=np.uint8, mode="c", shape=self.shape)
        train = self.context.train
        return replace(self.context, train=ImageSet(torch.from_numpy(mapped), train.labels, train.class_names))


class SharedImages:
    """A context's training images in a temporary file, for as long as this is open."""

    def __init__(self, context: Context) -> None:
        self.context = context
        handle, name = tempfile.mkstemp(prefix="fedqssl-", suffix=".images")
        self.handle, self.path = handle, Path(name)

    def __enter__(self) -> Attachment:
        images = self.context.train.images.contiguous()
        path = str(self.path)
        if sys.platform == "linux":  # no name is needed there, so that a killed run leaves no file behind
            path = f"/proc/{os.getpid()}/fd/{self.handle}"
            self.path.unlink()
        with os.fdopen(os.dup(self.handle), "wb") as file:
            images.numpy().tofile(file)
        empty = ImageSet(images[:0], None, self.context.train.class_names)
        labels = self.context.train.labels
        slim = replace(self.context, train=_Labelled(empty.images, labels, empty.class_names), test=empty)
        return Attachment(slim, path, tuple(images.shape))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.handle)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class _Labelled(ImageSet):
    """Labels on their way to a worker, where the images join them again."""

    def __post_init__(self) -> None:
        """Nothing to check: the whole was checked when it was read."""
