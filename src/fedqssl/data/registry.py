"""Datasets by name: all values of the setting ``data``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedqssl.data.cifar import read_cifar
from fedqssl.data.digits import digits
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.folder import read_folder
from fedqssl.data.images import DataError, ImageSet, at_most, resized
from fedqssl.data.parquet import read_parquet
from fedqssl.data.pixels import OnBad, check_on_bad
from fedqssl.data.scenes import scenes
from fedqssl.files import absolute
from fedqssl.imported import nearest

Split = Literal["train", "test"]

SCENES_IMAGES = {"train": 5000, "test": 2000}


@dataclass(frozen=True)
class DatasetRequest:
    """What to load from a dataset; ``path`` is what follows the colon of ``folder:`` and ``parquet:``."""

    split: Split
    data_dir: Path | None
    on_bad: OnBad
    size: int
    path: Path
    progress: DownloadProgress | None
    images: int | None


@dataclass(frozen=True)
class Dataset:
    """A source of images; ``takes_path`` ones are written ``name:PATH``, ``draws`` ones read only as many as requested."""

    name: str
    description: str
    load: Callable[[DatasetRequest], ImageSet]
    takes_path: bool = False
    draws: bool = False


DATASETS: dict[str, Dataset] = {
    entry.name: entry
    for entry in (
        Dataset(
            "scenes",
            "embedded: ten textures, 32x32 colour, 5,000 + 2,000 images drawn by formula",
            lambda request: resized(scenes(SCENES_IMAGES[request.split], request.split), request.size),
        ),
        Dataset(
            "digits",
            "scikit-learn's handwritten digits, grey, 1,438 + 359 images (pip install 'fedqssl[data]')",
            lambda request: digits(request.split, request.size),
        ),
        Dataset(
            "cifar10",
            "CIFAR-10: 50,000 + 10,000 images of 10 classes; in data_dir or downloaded once (162 MB)",
            lambda request: _cifar("cifar10", request),
        ),
        Dataset(
            "cifar100",
            "CIFAR-100: 50,000 + 10,000 images of 100 classes; in data_dir or downloaded once (161 MB)",
            lambda request: _cifar("cifar100", request),
        ),
        Dataset(
            "folder",
            "folder:PATH, images of any kind and size; sub-folders, if any, are classes",
            lambda request: read_folder(request.path, request.split, request.size, request.on_bad),
            takes_path=True,
        ),
        Dataset(
            "parquet",
            "parquet:PATH, a folder of train-*.parquet and test-*.parquet in the Hugging Face layout",
            lambda r: read_parquet(r.path, r.split, size=r.size, on_bad=r.on_bad, images=r.images),
            takes_path=True,
            draws=True,
        ),
    )
}


_KEPT: dict[tuple[object, ...], ImageSet] | None = None


@contextmanager
def kept_datasets() -> Iterator[None]:
    """Within this context every data set is read and decoded only once: saves 15 s for each further CIFAR-10 run."""
    global _KEPT
    before, _KEPT = _KEPT, {} if _KEPT is None else _KEPT
    try:
        yield
    finally:
        _KEPT = before


def _cifar(name: str, request: DatasetRequest) -> ImageSet:
    return resized(read_cifar(name, request.split, request.data_dir, request.progress), request.size)


def load_dataset(
    spec: str,
    split: Split,
    data_dir: Path | None = None,
    on_bad: OnBad = "error",
    size: int = 32,
    progress: DownloadProgress | None = None,
    images: int | None = None,
) -> ImageSet:
    """Load one split of a dataset.

    Args:
        spec: a name in ``DATASETS``, or ``folder:PATH`` or ``parquet:PATH``.
        split: ``train`` or ``test``.
        data_dir: where official archives are stored or downloaded to.
        on_bad: whether a corrupt image of a folder or parquet file is an ``error`` or is skipped with a warning (``skip``).
        size: height and width of the images returned.
        progress: called during downloads.
        images: at most so many, drawn from all, always the same.

    Raises:
        DataError: one line that says what to do.
    """
    name, colon, path = spec.partition(":")
    if name not in DATASETS:
        hint = nearest(name, DATASETS, f"; choose from {', '.join(map(_written, DATASETS.values()))}")
        raise DataError(f"unknown dataset '{spec}'{hint}")
    entry = DATASETS[name]
    if entry.takes_path and not path:
        raise DataError(f"dataset '{name}' needs a path; write {name}:PATH")
    if colon and not entry.takes_path:
        raise DataError(f"dataset '{name}' takes no path; write {name}")
    if split not in ("train", "test"):
        raise DataError(f"no split '{split}'; use train or test")
    check_on_bad(on_bad)
    if size < 1:
        raise DataError(f"size must be at least 1, not {size}; 32 is usual")
    # Where bad images are left out, only reading all of them tells how many there are to draw from.
    drawn = images if entry.draws and on_bad == "error" else None
    key = (spec, split, data_dir, on_bad, size, drawn)
    found = None if _KEPT is None else _KEPT.get(key)
    if found is None:
        found = entry.load(DatasetRequest(split, data_dir, on_bad, size, Path(path).expanduser(), progress, drawn))
        if _KEPT is not None:
            _KEPT[key] = found
    return at_most(found, images)


def _written(entry: Dataset) -> str:
    return f"{entry.name}:PATH" if entry.takes_path else entry.name


__all__ = ["DATASETS", "Dataset", "absolute", "kept_datasets", "load_dataset"]
