"""Images that a program holds in memory, as data of a run: stored once, so that the run can be resumed and read.

``arrays:PATH`` is a folder with ``train.npz`` and perhaps ``test.npz``: ``images`` (N, C, H, W) uint8 and, if known, ``labels``
(N,), ``class_names`` and ``clients`` (N,), the natural client of each image. Large files stay on disk: they are mapped.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedqssl.data.images import DataError, ImageSet, drawn, resized
from fedqssl.data.mapped import place_in_npz
from fedqssl.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS
from fedqssl.data.pictures import one_picture
from fedqssl.files import write_atomically

SPLITS = ("train", "test")


def read_arrays(path: Path, split: str, size: int, holdout: float) -> ImageSet:
    """One split; without ``test.npz`` a share of the training images, always the same, is the test split.

    Raises:
        DataError: the folder or a file cannot be used; one line that says why.
    """
    if (path / "test.npz").is_file():
        return resized(_read(path, split), size)
    return resized(held_out(_read(path, "train"), split, holdout, str(path)), size)


def held_out(found: ImageSet, split: str, holdout: float, where: str) -> ImageSet:
    """The training images without a share of them, or that share: the test split of a set that has none; always the same."""
    count = round(holdout * len(found))
    held = torch.empty(0, dtype=torch.int64) if not holdout else drawn(len(found), max(count, 1))
    if held is None:
        raise DataError(f"{where}: {len(found)} images are too few to hold out {holdout:.0%} of them for testing")
    keep = torch.ones(len(found), dtype=torch.bool)
    keep[held] = False
    return found.subset(held if split == "test" else keep.nonzero().flatten())


def _read(path: Path, split: str) -> ImageSet:
    file = path / f"{split}.npz"
    if not file.is_file():
        raise DataError(
            f"{file}: no such file; arrays:PATH is a folder with train.npz, as fedqssl.run(data=...) writes it"
        )
    try:
        with np.load(file, allow_pickle=False) as found:
            place = place_in_npz(file, "images") if "images" in found.files else None
            values = {name: found[name] for name in found.files if not (place and name == "images")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read ({' '.join(str(error).split())}); write it again") from error
    if place is None and "images" not in values:
        raise DataError(f"{file} has no array 'images'; write it again")
    names, clients = (values.get(key) for key in ("class_names", "clients"))
    return ImageSet(
        torch.from_numpy(values["images"]) if place is None else place.map(),
        torch.from_numpy(values["labels"].astype(np.int64)) if "labels" in values else None,
        None if names is None else tuple(map(str, names)),
        None if clients is None else tuple(map(sys.intern, map(str, clients))),
    )


def arrays_are_labeled(path: Path) -> bool:
    """Whether the training images have labels."""
    return _read(path, "train").labels is not None


def write_arrays(splits: Mapping[str, ImageSet], parent: Path) -> Path:
    """Store splits in ``parent/images-DIGEST``, once for the same images; the folder's path."""
    files = {}
    for split, data in splits.items():
        arrays = {"images": data.images.numpy()}
        if data.labels is not None:
            arrays["labels"] = data.labels.numpy()
        if data.class_names is not None:
            arrays["class_names"] = np.array(data.class_names, dtype=np.str_)
        if data.groups is not None:
            arrays["clients"] = np.array(data.groups, dtype=np.str_)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        files[f"{split}.npz"] = (buffer.getvalue(), _digest(arrays))
    name = hashlib.sha256("".join(f"{file} {digest}" for file, (_, digest) in sorted(files.items())).encode())
    folder = parent / f"images-{name.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, (data_bytes, _) in files.items():
        if not (folder / file).exists():
            write_atomically(folder / file, data_bytes)
    return folder


def _digest(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        found.update(f"{name} {values.dtype} {values.shape} ".encode())
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


def in_memory(data: object, size: int) -> dict[str, ImageSet]:
    """The splits in what a caller passed.

    Args:
        data: images; images and labels; a torch or Hugging Face data set; or a mapping from ``train`` and ``test`` to such.
            Images are one array (N, H, W[, C]) or tensor (N, C, H, W), or a sequence of pictures of any kind and size.
        size: pictures of different sizes are resized to it.

    Raises:
        DataError: one line that says what is expected.
    """
    if not isinstance(data, Mapping):
        return {"train": image_set(data, size)}
    unknown = [str(name) for name in data if name not in SPLITS]
    if unknown or "train" not in data:
        raise DataError(f"data has the splits {', '.join(map(str, data))}; pass train and, if there is one, test")
    found = {str(name): image_set(part, size) for name, part in data.items()}
    names = {split: part.class_names for split, part in found.items()}
    if len(set(names.values())) > 1:
        raise DataError("train and test have different class names; pass the same ones for both")
    return found


def image_set(data: Any, size: int) -> ImageSet:
    """One split of what :func:`in_memory` takes."""
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        pixels = _pixels(data[0], size)
        return ImageSet(pixels, _labels(data[1], len(pixels)))
    if isinstance(data, (np.ndarray, Tensor)) or (isinstance(data, list) and not _is_pair(data)):
        return ImageSet(_pixels(data, size))
    if hasattr(data, "features") and hasattr(data, "column_names"):
        return _from_columns(data, size)
    if hasattr(data, "__getitem__") and isinstance(data, Sized):
        return _from_items(data, size)
    raise DataError(
        f"data cannot be a {type(data).__name__}; pass a folder, arrays, (images, labels), or a torch or Hugging Face data set"
    )


def _is_pair(items: list[Any]) -> bool:
    return bool(items) and isinstance(items[0], (tuple, list, Mapping))


def _from_columns(data: Any, size: int) -> ImageSet:
    """A Hugging Face data set: its image column and, if there is one, its label column."""
    image = next((name for name in IMAGE_COLUMNS if name in data.column_names), None)
    if image is None:
        raise DataError(f"the data set has columns {', '.join(data.column_names)}, but none named image or img")
    label = next((name for name in LABEL_COLUMNS if name in data.column_names), None)
    pixels = _pixels((row[image] for row in data), size)
    if label is None:
        return ImageSet(pixels)
    names = getattr(data.features[label], "names", None)
    return ImageSet(pixels, _labels(data[label][:], len(pixels)), None if names is None else tuple(names))


def _from_items(data: Any, size: int) -> ImageSet:
    """A torch data set, or a sequence of its items: ``(image, label)``, ``{"image": ..., "label": ...}`` or images alone."""
    images, labels = [], []
    for number in range(len(data)):
        item = data[number]
        if isinstance(item, Mapping):
            image = next((item[name] for name in IMAGE_COLUMNS if name in item), None)
            label = next((item[name] for name in LABEL_COLUMNS if name in item), None)
        else:
            image, label = (item[0], item[1]) if isinstance(item, (tuple, list)) and len(item) > 1 else (item, None)
        images.append(image)
        labels += [] if label is None else [int(label)]
    if labels and len(labels) != len(images):
        raise DataError(f"{len(labels)} of {len(images)} items have a label; label all or none")
    names = getattr(data, "classes", None)
    pixels = _pixels(images, size)
    if not labels:
        return ImageSet(pixels)
    return ImageSet(pixels, _labels(labels, len(pixels)), None if names is None else tuple(map(str, names)))


def _labels(labels: Any, count: int) -> Tensor:
    found = torch.as_tensor(np.asarray(labels))
    if found.is_floating_point() or found.shape != (count,):
        raise DataError(
            f"labels must be {count} whole numbers, one for each image, not {tuple(found.shape)} of {found.dtype}"
        )
    return found.to(torch.int64)


def _pixels(images: Any, size: int) -> Tensor:
    """Images as uint8 (N, C, H, W); pictures of different sizes are resized."""
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim in (3, 4):
        tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
        if images.ndim == 3:
            tensor = tensor[:, None]
        elif isinstance(images, np.ndarray):
            tensor = tensor.permute(0, 3, 1, 2)
        return _bytes_of(tensor).contiguous()
    made = [one_picture(_as_picture(image), f"image {i}", None, 3) for i, image in enumerate(images)]
    if not made:
        raise DataError("data has no images")
    if len({image.shape for image in made}) > 1:
        made = [resized(ImageSet(image[None]), size).images[0] for image in made]
    return torch.stack(made)


def _as_picture(image: Any) -> Any:
    return _bytes_of(image) if isinstance(image, Tensor) else image


def _bytes_of(tensor: Tensor) -> Tensor:
    """Floats in [0, 1] and whole numbers from 0 to 255 as bytes; bytes as they are."""
    if tensor.dtype == torch.uint8 or tensor.dtype == torch.bool:
        return tensor
    low, high = (float(v) for v in tensor.aminmax()) if tensor.numel() else (0.0, 0.0)
    if not tensor.is_floating_point():
        if not 0 <= low <= high <= 255:
            raise DataError(f"images of whole numbers must lie in 0 to 255, not [{low:.0f}, {high:.0f}]; scale them")
        return tensor.to(torch.uint8)
    if not 0 <= low <= high <= 1:
        raise DataError(
            f"images of floats must lie in [0, 1], not [{low:.3g}, {high:.3g}]; leave out normalization, which batch norm does"
        )
    return (tensor * 255).round().to(torch.uint8)


def is_in_memory(data: object) -> bool:
    """Whether ``data`` is something to store, rather than the name or the place of a data set."""
    return not isinstance(data, (str, Path))


__all__ = ["arrays_are_labeled", "held_out", "in_memory", "is_in_memory", "read_arrays", "write_arrays"]
