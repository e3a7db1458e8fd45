"""The training images that a configuration names, partitioned as it says; always with the same result."""

from __future__ import annotations

import dataclasses

from fedqssl.config import RunConfig
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.images import ImageSet, at_most
from fedqssl.data.partition import Partition, build_partition
from fedqssl.data.registry import load_dataset


def training_split(config: RunConfig, progress: DownloadProgress | None = None) -> tuple[ImageSet, Partition]:
    """All images of the clients and the buffer, at most ``config.images`` of them, and the partition."""
    natural = config.partition == "natural"
    images = None if natural else config.images  # only all of them tell what their folders' names mean
    train = load_dataset(
        config.data, "train", config.data_dir, config.on_bad, config.image_size, progress=progress, images=images
    )
    if natural:
        if _names_are_labels(train):
            train = dataclasses.replace(train, labels=None)
        train = at_most(train, config.images)
    partition = build_partition(
        train,
        config.partition,
        None if natural else config.clients,
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
