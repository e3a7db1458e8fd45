"""The training images that a configuration names, split as it says; the same wherever it is asked for."""

from __future__ import annotations

import dataclasses

import torch

from fedqssl.config import RunConfig
from fedqssl.data.fetch import Progress
from fedqssl.data.images import ImageSet
from fedqssl.data.partition import Partition, build_partition
from fedqssl.data.registry import load_dataset


def training_split(config: RunConfig, progress: Progress | None = None) -> tuple[ImageSet, Partition]:
    """All clients' images with the buffer's, no more than ``config.images`` of them, and whose they are."""
    train = load_dataset(config.data, "train", config.data_dir, on_bad=config.on_bad, progress=progress)
    if config.partition == "natural" and _names_are_labels(train):
        train = dataclasses.replace(train, labels=None)
    if config.images is not None and config.images < len(train.images):
        keep = torch.randperm(len(train.images), generator=torch.Generator().manual_seed(0))[: config.images]
        train = train.subset(keep.sort().values)
    partition = build_partition(
        train,
        config.partition,
        None if config.partition == "natural" else config.clients,
        beta=config.beta,
        classes_per_client=config.classes_per_client,
        minority=config.minority,
        buffer_ratio=config.buffer_ratio,
        seed=config.seed,
    )
    return train, partition


def _names_are_labels(train: ImageSet) -> bool:
    """Whether the "classes" are the clients: one folder per client, with pictures and no classes inside."""
    if train.labels is None or train.groups is None:
        return False
    labels = train.labels.tolist()
    pairs = set(zip(labels, train.groups, strict=True))
    return 1 < len(pairs) == len(set(labels)) == len(set(train.groups))


__all__ = ["training_split"]
