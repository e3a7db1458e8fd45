"""The training images that a configuration names, partitioned as it says; always with the same result."""

from __future__ import annotations

import dataclasses

from fedqssl.config import RunConfig
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.images import ImageSet, at_most
from fedqssl.data.partition import PARTITIONS, Partition, build_partition
from fedqssl.data.registry import Split, is_labeled, load_dataset


def settled(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """The settings of a new run, and a line for the user if they had to change because the images have no labels.

    Nothing is then held out, and a partition that needs labels becomes ``iid``. No image is read.
    """
    needs = PARTITIONS[config.partition].needs_labels
    how = config.on_bad, config.partition == "natural", config.group
    if not (needs or config.evaluation.holdout) or is_labeled(config.data, *how):
        return config, []
    line = f"{config.data} has no labels, so all of its images are used for training"
    evaluation = config.evaluation.model_copy(update={"holdout": 0.0})
    config = config.model_copy(update={"evaluation": evaluation, "partition": "iid" if needs else config.partition})
    return config, [f"{line} and partition is iid" if needs else line]


def load_split(
    config: RunConfig, split: Split, progress: DownloadProgress | None = None, images: int | None = None
) -> ImageSet:
    """One split of the data that a configuration names, as it says; ``images`` limits its number."""
    place, how = (config.data_dir, config.on_bad), (config.evaluation.holdout, config.group)
    return load_dataset(config.data, split, *place, config.image_size, progress, images, *how)


def training_split(config: RunConfig, progress: DownloadProgress | None = None) -> tuple[ImageSet, Partition]:
    """All images of the clients and the buffer, at most ``config.images`` of them, and the partition."""
    natural = config.partition == "natural"
    images = None if natural else config.images  # only all of them tell what their folders' names mean
    train = load_split(config, "train", progress, images)
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
        holdout=config.evaluation.holdout,
    )
    return train, partition


def _names_are_labels(train: ImageSet) -> bool:
    """Whether the "classes" are the clients: one folder per client, with pictures and no classes inside."""
    if train.labels is None or train.groups is None:
        return False
    labels = train.labels.tolist()
    pairs = set(zip(labels, train.groups, strict=True))
    return 1 < len(pairs) == len(set(labels)) == len(set(train.groups))


__all__ = ["load_split", "settled", "training_split"]
