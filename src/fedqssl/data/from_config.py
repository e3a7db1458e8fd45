"""The training images that a configuration names, partitioned as it says; always with the same result."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from fedqssl.config import RunConfig
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.images import DataError, ImageSet, at_most, with_channels
from fedqssl.data.partition import MIN_BUFFER, PARTITIONS, build_partition
from fedqssl.data.registry import Split, is_labeled, load_dataset
from fedqssl.data.splits import Partition
from fedqssl.files import absolute


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


def server_images(config: RunConfig, channels: int, progress: DownloadProgress | None = None) -> Tensor | None:
    """The server's own images, if ``buffer`` names some: as large as the clients', with as many channels.

    Raises:
        DataError: they cannot be read or used; one line that says what to do.
    """
    if config.buffer is None:
        return None
    if absolute(config.buffer) == absolute(config.data):
        raise DataError(
            f"buffer={config.buffer} is the clients' own data; use buffer_ratio, which takes images from them"
        )
    size, count = config.image_size, config.buffer_images
    found = load_dataset(config.buffer, "train", config.data_dir, config.on_bad, size, progress, count, 0.0).images
    if len(found) < MIN_BUFFER:
        raise DataError(f"the buffer {config.buffer} has {len(found)} image; at least {MIN_BUFFER} are needed")
    return with_channels(found, channels)


def training_split(config: RunConfig, progress: DownloadProgress | None = None) -> tuple[ImageSet, Partition]:
    """All images of the clients and of a buffer taken from them, at most ``config.images``, and the partition."""
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
        buffer_last=config.buffer_draw == "last",
    )
    return train, partition


def _names_are_labels(train: ImageSet) -> bool:
    """Whether the "classes" are the clients: one folder per client, with pictures and no classes inside."""
    if train.labels is None or train.groups is None:
        return False
    labels = train.labels.tolist()
    pairs = set(zip(labels, train.groups, strict=True))
    return 1 < len(pairs) == len(set(labels)) == len(set(train.groups))


__all__ = ["load_split", "server_images", "settled", "training_split"]
