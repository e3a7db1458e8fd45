"""Reader of a folder of pictures of any kind and size.

Layouts, detected automatically:

* ``cat/1.jpg, dog/2.png``: sub-folders are classes.
* ``phone-a/cat/1.jpg, phone-b/cat/2.jpg``: two levels with recurring inner names are natural clients, then classes.
* ``1.jpg, 2.png``: no labels.
* any of these inside ``train/`` and ``test/`` (or ``val/``); otherwise a share of each class, by default a fifth, is the test
  split, chosen by the hash of the files' names.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fedqssl.data.bursts import Group, burst_of, fitting
from fedqssl.data.images import DataError, ImageSet
from fedqssl.data.pixels import SUFFIXES, CorruptImageError, OnBad, check_on_bad, decode, warn_skipped

TEST_FOLDERS = ("test", "val")
HOLDOUT = 0.2


@dataclass(frozen=True)
class _File:
    """A picture, its path below the split's folder (without the folder of its burst), its burst, class and client."""

    path: Path
    relative: PurePosixPath
    burst: str
    label: str | None = None
    group: str | None = None


def read_folder(
    path: str | Path,
    split: str = "train",
    size: int = 32,
    on_bad: OnBad = "error",
    holdout: float = HOLDOUT,
    group: Group = "none",
) -> ImageSet:
    """Read one split of a folder of pictures, as ``size x size`` RGB, in the order of class and file name.

    Args:
        path: the folder; see the module for its layouts.
        split: ``train`` or ``test``.
        size: height and width to which the centre square of each picture is resized.
        on_bad: what to do with a corrupt picture: ``error``, or ``skip`` it with a warning that names it.
        holdout: share of a folder without ``test/`` that is its test split; 0 leaves that split empty.
        group: how bursts are recognised, which the test split does not divide (:mod:`fedqssl.data.bursts`).

    Raises:
        DataError: no such folder, no pictures, or a corrupt one.
    """
    check_on_bad(on_bad)
    if split not in ("train", "test"):
        raise DataError(f"a folder has no split '{split}'; use train or test")
    if size < 1:
        raise DataError(f"size must be at least 1, not {size}; 32 is usual")
    root = Path(path).expanduser()
    files, names, skipped = _split_files(root, split, on_bad, holdout, group)
    images: list[torch.Tensor] = []
    kept: list[_File] = []
    for file in files:
        try:
            pixels = decode(file.path, str(file.path), size)
        except CorruptImageError as error:
            if on_bad == "error":
                raise DataError(f"{error} (or set on_bad=skip)") from error
            skipped.append(str(error))
            continue
        images.append(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))))
        kept.append(file)
    warn_skipped(skipped, root)
    if files and not images:
        raise DataError(f"{root}: none of the {len(files)} images of split '{split}' can be read; check the files")
    stacked = torch.stack(images) if images else torch.empty((0, 3, size, size), dtype=torch.uint8)
    found = _image_set(stacked, kept, names)
    return found if group == "none" else replace(found, bursts=tuple(file.burst for file in kept))


def folder_is_labeled(path: Path, on_bad: OnBad, natural: bool, group: Group) -> bool:
    """Whether a folder's pictures have classes; with ``natural``, outer folders without classes inside are clients instead."""
    files, names, _ = _split_files(path, "train", on_bad, 0.0, group)
    clients = natural and all(file.label == file.group for file in files)
    return names is not None and not (clients and len(names) > 1)


def _image_set(images: torch.Tensor, files: list[_File], names: tuple[str, ...] | None) -> ImageSet:
    labels = None
    if names is not None:
        number = {name: i for i, name in enumerate(names)}
        labels = torch.tensor([number[file.label or ""] for file in files], dtype=torch.int64)
    groups = tuple(file.group for file in files if file.group is not None)
    return ImageSet(images, labels, names, groups or None)


def _split_files(
    root: Path, split: str, on_bad: OnBad, holdout: float, group: Group
) -> tuple[list[_File], tuple[str, ...] | None, list[str]]:
    """The files of the split, the names of the classes of both splits, and the skipped files."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give a folder of images")
    held_out = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    train = root / "train" if (root / "train").is_dir() else None
    if held_out is None and _folders(root) != ["train"]:
        train = None  # then "train" is a class like its neighbours
    if train is None or held_out is None:
        skipped: list[str] = []
        files = _label(_walk(train or root, group), on_bad, skipped)
        if not files:
            raise DataError(f"{train or root}: no images here; supported are {', '.join(sorted(SUFFIXES))}")
        return _hashed_split(files, split, root, holdout), _names(files), skipped
    skipped_by = {"train": [], "test": []}  # type: dict[str, list[str]]
    both = {
        name: _label(_walk(folder, group), on_bad, skipped_by[name])
        for name, folder in (("train", train), ("test", held_out))
    }
    if not both[split]:
        raise DataError(
            f"{train if split == 'train' else held_out}: no images here; supported are {', '.join(sorted(SUFFIXES))}"
        )
    labeled = {name: files[0].label is not None for name, files in both.items() if files}
    if len(set(labeled.values())) > 1:
        raise DataError(
            f"{root}: only one of train and {held_out.name} has class folders; sort both into classes, or neither"
        )
    return both[split], _names([*both["train"], *both["test"]]), skipped_by[split]


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _visible(entry.name))


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _walk(folder: Path, group: Group) -> list[_File]:
    """All pictures below a folder in a fixed order; hidden files are skipped, linked folders are visited once."""
    found = []
    seen = {os.path.realpath(folder)}
    for here, folders, names in os.walk(folder, followlinks=True):
        visible = sorted(filter(_visible, folders))
        folders[:] = [f for f in visible if _first_visit(os.path.join(here, f), seen)]
        for name in names:
            if _visible(name) and os.path.splitext(name)[1].lower() in SUFFIXES:
                path = Path(here, name)
                whole = PurePosixPath(path.relative_to(folder).as_posix())
                relative = whole.parent.parent / name if group == "folder" else whole
                found.append(_File(path, relative, burst_of(whole, group)))
    return sorted(found, key=lambda file: (file.relative.parts, file.burst))


def _first_visit(folder: str, seen: set[str]) -> bool:
    real = os.path.realpath(folder)
    if real in seen:
        return False
    seen.add(real)
    return True


def _label(files: list[_File], on_bad: OnBad, skipped: list[str]) -> list[_File]:
    """Give every file its class and group by its folders; without folders, neither."""
    loose = [file for file in files if len(file.relative.parts) == 1]
    if len(loose) == len(files):
        return files
    if loose and on_bad == "error":
        raise DataError(
            f"{loose[0].path}: an image beside folders of images; move it into one of them (or set on_bad=skip)"
        )
    skipped.extend(f"{file.path}: an image beside folders of images" for file in loose)
    inside = [file for file in files if len(file.relative.parts) > 1]
    depth = 1 if _clients_then_classes([file.relative.parts for file in inside]) else 0
    labeled = [replace(f, label=f.relative.parts[depth], group=f.relative.parts[0]) for f in inside]
    return sorted(labeled, key=lambda file: (file.label or "", file.relative.parts))


def _clients_then_classes(paths: Sequence[tuple[str, ...]]) -> bool:
    """Whether folders are two deep everywhere, with at least two inner names, one of them in several outer folders."""
    if any(len(parts) < 3 for parts in paths):
        return False
    outer_of: dict[str, set[str]] = defaultdict(set)
    for parts in paths:
        outer_of[parts[1]].add(parts[0])
    return len(outer_of) > 1 and any(len(outer) > 1 for outer in outer_of.values())


def _names(files: list[_File]) -> tuple[str, ...] | None:
    names = sorted({file.label for file in files if file.label is not None})
    return tuple(names) or None


def _hashed_split(files: list[_File], split: str, root: Path, holdout: float) -> list[_File]:
    """Of each class and client, the bursts with the smallest hashes of their names are the test split; order is kept."""
    if not holdout:
        return files if split == "train" else []
    test: set[str] = set()
    pools: dict[tuple[str | None, str | None], Counter[str]] = defaultdict(Counter)
    for file in files:
        pools[(file.label, file.group)][file.burst] += 1
    for pool in pools.values():
        ranked = sorted(pool, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
        share = max(1, round(holdout * pool.total()))
        test.update(ranked[i] for i in fitting([pool[name] for name in ranked], share))
    chosen = [file for file in files if (file.burst in test) == (split == "test")]
    if not chosen:
        bursts = sum(map(len, pools.values()))
        few = f"{len(files)} image(s)" + ("" if bursts == len(files) else f" in {bursts} burst(s)")
        raise DataError(f"{root}: {few} are too few for a {split} split; add images or train/ and test/ folders")
    return chosen


__all__ = ["HOLDOUT", "folder_is_labeled", "read_folder"]
