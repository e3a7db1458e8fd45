"""Datasets by name: all values of the setting ``data``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fedqssl.data.arrays import arrays_are_labeled, read_arrays
from fedqssl.data.bursts import Group
from fedqssl.data.cifar import read_cifar
from fedqssl.data.digits import digits
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.folder import HOLDOUT, folder_is_labeled, read_folder
from fedqssl.data.hub import hub_is_labeled, read_hub
from fedqssl.data.images import DataError, ImageSet, at_most, resized
from fedqssl.data.parquet import parquet_is_labeled, read_parquet
from fedqssl.data.pixels import OnBad, check_on_bad
from fedqssl.data.scenes import scenes
from fedqssl.files import absolute
from fedqssl.imported import nearest

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")

SCENES_IMAGES = {"train": 5000, "test": 2000}


@dataclass(frozen=True)
class DatasetRequest:
    """What to load from a dataset; ``path`` is what follows the colon of ``folder:``, ``parquet:`` and the like."""

    split: Split
    data_dir: Path | None
    on_bad: OnBad
    size: int
    path: Path
    progress: DownloadProgress | None
    images: int | None
    holdout: float
    group: Group


@dataclass(frozen=True)
class Dataset:
    """A source of images; ``takes_path`` ones are written ``name:PATH``, ``draws`` ones read only as many as requested.

    ``labeled`` says whether the data at a path have labels: (path, on_bad, whether outer folders are clients, group).
    """

    name: str
    description: str
    load: Callable[[DatasetRequest], ImageSet]
    takes_path: bool = False
    draws: bool = False
    labeled: Callable[[Path, OnBad, bool, Group], bool] = lambda path, on_bad, natural, group: True


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
            lambda r: read_folder(r.path, r.split, r.size, r.on_bad, r.holdout, r.group),
            takes_path=True,
            labeled=folder_is_labeled,
        ),
        Dataset(
            "parquet",
            "parquet:PATH, a folder of train-*.parquet and test-*.parquet in the Hugging Face layout",
            lambda r: read_parquet(r.path, r.split, size=r.size, on_bad=r.on_bad, images=r.images),
            takes_path=True,
            draws=True,
            labeled=lambda path, on_bad, natural, group: parquet_is_labeled(path),
        ),
        Dataset(
            "arrays",
            "arrays:PATH, a folder with train.npz and perhaps test.npz, as fedqssl.run(data=...) stores images from memory",
            lambda r: read_arrays(r.path, r.split, r.size, r.holdout),
            takes_path=True,
            labeled=lambda path, on_bad, natural, group: arrays_are_labeled(path),
        ),
        Dataset(
            "hf",
            "hf:PATH or hf:NAME, a Hugging Face data set, saved on this machine or on the hub (pip install 'fedqssl[hf]')",
            lambda r: read_hub(str(r.path), r.split, r.size, r.holdout),
            takes_path=True,
            labeled=lambda path, on_bad, natural, group: hub_is_labeled(str(path)),
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
    holdout: float = HOLDOUT,
    group: Group = "none",
) -> ImageSet:
    """Load one split of a dataset.

    Args:
        spec: a name in ``DATASETS``, or ``folder:PATH``, ``parquet:PATH``, ``arrays:PATH``, ``hf:PATH`` or ``hf:NAME``.
        split: ``train`` or ``test``.
        data_dir: where official archives are stored or downloaded to.
        on_bad: whether a corrupt image of a folder or parquet file is an ``error`` or is skipped with a warning (``skip``).
        size: height and width of the images returned.
        progress: called during downloads.
        images: at most so many, drawn from all, always the same.
        holdout: share of a folder without ``test/`` that is its test split; 0 leaves that split empty.
        group: how a folder's bursts are recognised, which no split divides.

    Raises:
        DataError: one line that says what to do.
    """
    entry, path = _entry(spec, group)
    if split not in SPLITS:
        raise DataError(f"no split '{split}'; use train or test")
    check_on_bad(on_bad)
    if size < 1:
        raise DataError(f"size must be at least 1, not {size}; 32 is usual")
    # Where bad images are left out, only reading all of them tells how many there are to draw from.
    drawn = images if entry.draws and on_bad == "error" else None
    key = (spec, split, data_dir, on_bad, size, drawn, holdout, group)
    found = None if _KEPT is None else _KEPT.get(key)
    if found is None:
        found = entry.load(DatasetRequest(split, data_dir, on_bad, size, path, progress, drawn, holdout, group))
        if _KEPT is not None:
            _KEPT[key] = found
    return at_most(found, images)


def is_labeled(spec: str, on_bad: OnBad = "error", natural: bool = False, group: Group = "none") -> bool:
    """Whether a data set has labels; no image is read.

    Args:
        spec: as for :func:`load_dataset`.
        on_bad: as for :func:`load_dataset`.
        natural: whether outer folders of a folder are clients, so that they are classes only if there are folders inside.
        group: as for :func:`load_dataset`.

    Raises:
        DataError: one line that says what to do.
    """
    entry, path = _entry(spec, group)
    return entry.labeled(path, on_bad, natural, group)


def _entry(spec: str, group: Group) -> tuple[Dataset, Path]:
    """The data set that a text names, and its path."""
    name, colon, path = spec.partition(":")
    if name not in DATASETS:
        if spec and Path(spec).expanduser().is_dir():
            raise DataError(f"unknown dataset '{spec}'; it is a folder, so write folder:{spec}")
        hint = nearest(name, DATASETS, f"; choose from {', '.join(map(_written, DATASETS.values()))}")
        raise DataError(f"unknown dataset '{spec}'{hint}")
    entry = DATASETS[name]
    if entry.takes_path and not path:
        raise DataError(f"dataset '{name}' needs a path; write {name}:PATH")
    if colon and not entry.takes_path:
        raise DataError(f"dataset '{name}' takes no path; write {name}")
    if group not in get_args(Group):
        raise DataError(f"group must be none, prefix or folder, not '{group}'")
    if group != "none" and name != "folder":
        raise DataError(f"group = '{group}' is for folder:PATH; leave it out with data={spec}")
    return entry, Path(path).expanduser()


def _written(entry: Dataset) -> str:
    return f"{entry.name}:PATH" if entry.takes_path else entry.name


__all__ = ["DATASETS", "HOLDOUT", "SPLITS", "Dataset", "absolute", "is_labeled", "kept_datasets", "load_dataset"]
