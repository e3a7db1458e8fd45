"""Reader of image sets in the Hugging Face parquet layout: a folder of ``train-*`` and ``test-*`` shards."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
_ROWS_AT_A_TIME = 1000


class DataError(ValueError):
    """A data set that cannot be used; the message is one line and names the file and what to do."""


@dataclass(frozen=True)
class ImageSet:
    """Decoded images and, when the source has them, their labels.

    Args:
        images: (N, 3, H, W) uint8.
        labels: (N,) int64, or None for an unlabeled set.
        class_names: the name of each label, or None when the source does not tell.
    """

    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.images)


def read_parquet(
    path: str | Path, split: str = "train", limit: int | None = None, *, label: str | None = None
) -> ImageSet:
    """Read and decode one split of a folder of parquet shards, in the order of the shards' names.

    Args:
        path: folder with ``<split>-*.parquet``, each with a column ``img`` or ``image`` of {bytes, path}.
        split: ``train``, ``test`` or whatever the files are named.
        limit: read only the first rows.
        label: label column, such as ``coarse_label``; by default ``label`` or ``fine_label``, if any.

    Raises:
        DataError: the folder, split, column or an image is missing or unusable.
        ImportError: pyarrow or pillow is not installed.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be at least 1, not {limit}; leave it out to read everything")
    parquet = _import("pyarrow.parquet")
    decoder = _import("PIL.Image")
    shards = _shards(Path(path).expanduser(), split)
    images: list[np.ndarray[Any, Any]] = []
    labels: list[int] = []
    with _open(parquet, shards[0]) as first:
        image, label = _columns(first.schema_arrow, shards[0], label)
        names = _class_names(first.schema_arrow.metadata, label)
    for where, cell, row_label in _rows(parquet, shards, image, label, limit):
        pixels = _decode(decoder, cell, where)
        if images and pixels.shape != images[0].shape:
            (h, w), (h0, w0) = pixels.shape[:2], images[0].shape[:2]
            raise DataError(f"{where}: image is {h}x{w} but the first is {h0}x{w0}; resize them to one size")
        images.append(pixels)
        if label is not None:
            if row_label is None:
                raise DataError(f"{where}: '{label}' is empty; label every row or drop the column")
            labels.append(row_label)
    if not images:
        raise DataError(f"{shards[0].parent}: split '{split}' has no rows")
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()  # (N, 3, H, W)
    return ImageSet(stacked, torch.tensor(labels, dtype=torch.int64) if label else None, names)


def _import(name: str) -> Any:
    """Import an optional module, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "pillow" if name.startswith("PIL") else "pyarrow"
        raise ImportError(f"reading parquet needs {package}: pip install 'fedqssl[data]'") from error


def _shards(folder: Path, split: str) -> list[Path]:
    """The split's files in order; a set named ``-of-00002`` with one file is incomplete, not small."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; pass one with {split}-*.parquet files")
    shards = sorted(folder.glob(f"{split}-*.parquet"))
    if not shards:
        found = sorted({file.name.split("-")[0] for file in folder.glob("*-*.parquet")})
        hint = f"splits here: {', '.join(found)}" if found else "the folder has no <split>-*.parquet files"
        raise DataError(f"{folder}: no split '{split}'; {hint}")
    total = re.search(r"-of-(\d+)\.parquet$", shards[-1].name)
    if total and int(total[1]) != len(shards):
        raise DataError(f"{folder}: {len(shards)} of {int(total[1])} '{split}' shards; fetch the others")
    return shards


def _open(parquet: Any, shard: Path) -> Any:
    try:
        return parquet.ParquetFile(shard)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise DataError(f"{shard}: not a readable parquet file; fetch it again ({_line(error)})") from error


def _columns(schema: Any, shard: Path, label: str | None) -> tuple[str, str | None]:
    """Names of the image column and of the label column, which may be absent unless it was asked for."""
    has = ", ".join(schema.names)
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    if image is None:
        raise DataError(f"{shard}: no column 'img' or 'image' (it has: {has}); rename the image column")
    kind = schema.field(image).type
    if "bytes" not in [kind.field(i).name for i in range(kind.num_fields)]:
        raise DataError(f"{shard}: column '{image}' must hold 'bytes', not {kind}; embed the images")
    if label is not None and label not in schema.names:
        raise DataError(f"{shard}: no column '{label}' (it has: {has}); choose one of those")
    return image, label or next((name for name in LABEL_COLUMNS if name in schema.names), None)


def _rows(
    parquet: Any, shards: list[Path], image: str, label: str | None, limit: int | None
) -> Iterator[tuple[str, dict[str, Any] | None, int | None]]:
    """Yield (file and row, image cell, label) over all shards, reading a slice of a shard at a time."""
    wanted = [image] if label is None else [image, label]
    left = limit
    for shard in shards:
        row = 0
        with _open(parquet, shard) as file:
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{shard}: no column '{missing[0]}', unlike {shards[0].name}; fetch it again")
            for batch in _batches(file, wanted, shard):
                cells = batch.column(0).to_pylist()
                marks = batch.column(1).to_pylist() if label else [None] * len(cells)
                for cell, mark in zip(cells, marks, strict=True):
                    if left == 0:
                        return
                    yield f"{shard}, row {row}", cell, mark
                    row += 1
                    left = None if left is None else left - 1


def _batches(file: Any, wanted: list[str], shard: Path) -> Iterator[Any]:
    batches = file.iter_batches(_ROWS_AT_A_TIME, columns=wanted)
    while True:
        try:
            batch = next(batches, None)
        except (OSError, ValueError) as error:
            raise DataError(f"{shard}: damaged parquet file; fetch it again ({_line(error)})") from error
        if batch is None:
            return
        yield batch.select(wanted)


def _decode(decoder: Any, cell: dict[str, Any] | None, where: str) -> np.ndarray[Any, Any]:
    """Pixels (H, W, 3) uint8 of one {bytes, path} cell."""
    data = cell and cell.get("bytes")
    if not data:
        raise DataError(f"{where}: no image bytes; embed the images in the parquet file")
    try:
        with decoder.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))
    except Exception as error:  # pillow's decoders raise many types, among them SyntaxError and struct.error
        raise DataError(f"{where}: corrupt image ({_line(error)}); fetch the file again") from error


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...] | None:
    """Class names from the schema's ``huggingface`` entry: info -> features -> label -> names."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        names = feature["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(str(name) for name in names) if names else None


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = ["DataError", "ImageSet", "read_parquet"]
