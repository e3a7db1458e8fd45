"""Hugging Face data sets: ``hf:PATH`` of one that was saved with ``save_to_disk``, or ``hf:NAME`` of one on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedqssl.data.arrays import held_out, image_set
from fedqssl.data.images import DataError, ImageSet, resized
from fedqssl.data.parquet import LABEL_COLUMNS
from fedqssl.data.pixels import import_extra, line


def read_hub(name: str, split: str, size: int, holdout: float) -> ImageSet:
    """One split; of a data set without a test split a share of the training images is held out for it.

    Raises:
        DataError: it cannot be found or read; one line.
        MissingExtraError: the package ``datasets`` is not installed.
    """
    found = _loaded(name)
    if "test" in found:
        return resized(image_set(found[split], size), size)
    return resized(held_out(image_set(found["train"], size), split, holdout, f"hf:{name}"), size)


def hub_is_labeled(name: str) -> bool:
    """Whether its training images have labels."""
    return any(column in _loaded(name)["train"].column_names for column in LABEL_COLUMNS)


def _loaded(name: str) -> Mapping[str, Any]:
    """The splits by name; what was saved without splits is ``train``."""
    datasets = import_extra("datasets", "datasets", "Hugging Face data sets", "hf")
    try:
        found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    except Exception as error:  # the library raises many types, of files and of the network
        why = re.sub(r" \(\w+(Error|Exception)\)", "", line(error))[:200]  # the library's classes say nothing to a user
        raise DataError(f"hf:{name} cannot be loaded ({why}); check the name, or the path") from error
    splits: Mapping[str, Any] = found if isinstance(found, Mapping) else {"train": found}
    if "train" not in splits:
        raise DataError(f"hf:{name} has the splits {', '.join(splits)}, but no 'train'")
    return splits


__all__ = ["hub_is_labeled", "read_hub"]
