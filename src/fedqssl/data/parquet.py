"""Reader of image sets in the Hugging Face parquet layout: a folder of ``train-*`` and ``test-*`` shards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedqssl.data.images import DataError, ImageSet, drawn
from fedqssl.data.pixels import CorruptImageError, OnBad, check_on_bad, decode, import_extra, line, warn_skipped

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
GROUP_COLUMNS = ("client", "client_id", "user_id", "writer_id")
_ROWS_AT_A_TIME = 1000


class _Columns(NamedTuple):
    image: str
    label: str | None
    group: str | None


_Row = tuple[str, dict[str, Any] | None, Any, Any]  # file and row, image cell, label, group


def read_parquet(
    path: str | Path,
    split: str = "train",
    limit: int | None = None,
    *,
    label: str | None = None,
    group: str | None = None,
    size: int | None = None,
    on_bad: OnBad = "error",
    images: int | None = None,
) -> ImageSet:
    """Read and decode one split of a folder of parquet shards, in the order of the shards' names.

    Args:
        path: folder with ``<split>-*.parquet``, each with a column ``img`` or ``image`` of {bytes, path}.
        split: ``train``, ``test`` or any other prefix of the files.
        limit: read only the first rows.
        label: label column, such as ``coarse_label``; by default ``label`` or ``fine_label``, if any.
        group: column that names each image's natural client; by default ``client``, ``client_id``, ..., if any.
        size: resize the centre square of every image; by default they must all have one size.
        on_bad: what to do with a corrupt image: ``error``, or ``skip`` it with a warning that names it.
        images: decode at most so many rows, drawn from all, always the same; the others are not decoded.

    Raises:
        DataError: the folder, split, column or an image is missing or unusable.
        MissingExtraError: pyarrow or pillow is not installed.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be at least 1, not {limit}; leave it out to read everything")
    if size is not None and size < 1:
        raise DataError(f"size must be at least 1, not {size}; 32 is usual")
    check_on_bad(on_bad)
    parquet = import_extra("pyarrow.parquet", "pyarrow", "reading parquet")
    import_extra("PIL.Image", "pillow", "reading parquet")
    shards = _shards(Path(path).expanduser(), split)
    with _open(parquet, shards[0]) as first:
        columns = _columns(first.schema_arrow, shards[0], label, group)
        names = _class_names(first.schema_arrow.metadata, columns.label)
    rows = _rows(parquet, shards, columns, limit)
    if images is not None:
        rows = _chosen(rows, drawn(_count(parquet, shards, limit), images))
    pixels, labels, groups, skipped = _decoded(rows, columns, size, on_bad)
    warn_skipped(skipped, shards[0].parent)
    if not pixels:
        raise DataError(
            f"{shards[0].parent}: split '{split}' has no {'usable ' if skipped else ''}rows; check the files"
        )
    stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()  # (N, 3, H, W)
    return ImageSet(
        stacked,
        _labels(labels, shards[0], columns.label) if columns.label else None,
        names,
        tuple(str(name) for name in groups) if columns.group else None,
    )


def parquet_is_labeled(path: Path) -> bool:
    """Whether the images of a folder of parquet shards have labels; only the first shard's schema is read."""
    parquet = import_extra("pyarrow.parquet", "pyarrow", "reading parquet")
    shard = _shards(path, "train")[0]
    with _open(parquet, shard) as file:
        return _columns(file.schema_arrow, shard, None, None).label is not None


def _decoded(
    rows: Iterator[_Row], columns: _Columns, size: int | None, on_bad: OnBad
) -> tuple[list[npt.NDArray[np.uint8]], list[Any], list[Any], list[str]]:
    """Pixels, labels and groups of the valid rows, and why each of the others was skipped."""
    images: list[npt.NDArray[np.uint8]] = []
    labels: list[Any] = []
    groups: list[Any] = []
    skipped: list[str] = []
    for where, cell, label, group in rows:
        try:
            pixels = _pixels(cell, where, size)
        except CorruptImageError as error:
            if on_bad == "error":
                raise
            skipped.append(str(error))
            continue
        if images and pixels.shape != images[0].shape:
            (h, w), (h0, w0) = pixels.shape[:2], images[0].shape[:2]
            raise DataError(f"{where}: image is {h}x{w} but the first is {h0}x{w0}; resize them to one size")
        images.append(pixels)
        labels.append(_filled(label, columns.label, where))
        groups.append(_filled(group, columns.group, where))
    return images, labels, groups, skipped


def _labels(values: list[Any], shard: Path, label: str) -> Tensor:
    if not all(isinstance(value, int) for value in values):
        raise DataError(f"{shard}: column '{label}' must hold integers; number the classes from 0")
    return torch.tensor(values, dtype=torch.int64)


def _filled(value: Any, column: str | None, where: str) -> Any:
    """The value of a used column; an empty value is an error."""
    if column is not None and value is None:
        raise DataError(f"{where}: '{column}' is empty; fill in every row or drop the column")
    return value


def _shards(folder: Path, split: str) -> list[Path]:
    """The split's files in order; a data set named ``-of-00002`` with only one file is incomplete."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a folder with {split}-*.parquet files")
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
        raise DataError(f"{shard}: not a readable parquet file; fetch it again ({line(error)})") from error


def _columns(schema: Any, shard: Path, label: str | None, group: str | None) -> _Columns:
    """The columns to read; label and group may be absent unless they were requested."""
    has = ", ".join(schema.names)
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    if image is None:
        raise DataError(f"{shard}: no column 'img' or 'image' (it has: {has}); rename the image column")
    kind = schema.field(image).type
    if "bytes" not in [kind.field(i).name for i in range(kind.num_fields)]:
        raise DataError(f"{shard}: column '{image}' must hold 'bytes', not {kind}; embed the images")
    for name in (label, group):
        if name is not None and name not in schema.names:
            raise DataError(f"{shard}: no column '{name}' (it has: {has}); choose one of those")
    return _Columns(
        image,
        label or next((name for name in LABEL_COLUMNS if name in schema.names), None),
        group or next((name for name in GROUP_COLUMNS if name in schema.names), None),
    )


def _rows(parquet: Any, shards: list[Path], columns: _Columns, limit: int | None) -> Iterator[_Row]:
    """Yield every row of all shards, reading a slice of a shard at a time."""
    wanted = list(dict.fromkeys(name for name in columns if name is not None))
    left = limit
    for shard in shards:
        row = 0
        with _open(parquet, shard) as file:
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{shard}: no column '{missing[0]}', unlike {shards[0].name}; fetch it again")
            for batch in _batches(file, wanted, shard):
                lists = [batch.column(name).to_pylist() if name else [None] * batch.num_rows for name in columns]
                for cell, label, group in zip(*lists, strict=True):
                    if left == 0:
                        return
                    yield f"{shard}, row {row}", cell, label, group
                    row += 1
                    left = None if left is None else left - 1


def _count(parquet: Any, shards: list[Path], limit: int | None) -> int:
    """The number of rows, from the shards' metadata."""
    total = 0
    for shard in shards:
        with _open(parquet, shard) as file:
            total += int(file.metadata.num_rows)
    return total if limit is None else min(total, limit)


def _chosen(rows: Iterator[_Row], keep: Tensor | None) -> Iterator[_Row]:
    """The rows at these positions; None keeps all."""
    if keep is None:
        return rows
    wanted = set(keep.tolist())
    return (row for number, row in enumerate(rows) if number in wanted)


def _batches(file: Any, wanted: list[str], shard: Path) -> Iterator[Any]:
    batches = file.iter_batches(_ROWS_AT_A_TIME, columns=wanted)
    while True:
        try:
            batch = next(batches, None)
        except (OSError, ValueError) as error:
            raise DataError(f"{shard}: damaged parquet file; fetch it again ({line(error)})") from error
        if batch is None:
            return
        yield batch.select(wanted)


def _pixels(cell: dict[str, Any] | None, where: str, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels (H, W, 3) of one {bytes, path} cell."""
    data = cell and cell.get("bytes")
    if not data:
        raise CorruptImageError(f"{where}: no image bytes; embed the images in the parquet file")
    return decode(data, where, size)


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...] | None:
    """Class names from the schema's ``huggingface`` entry: info -> features -> label -> names."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]
        names = feature["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(str(name) for name in names) if names else None


__all__ = ["DataError", "ImageSet", "parquet_is_labeled", "read_parquet"]
