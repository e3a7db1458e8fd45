"""How many images each client and the server's buffer hold; counted from the data, or assumed if they are not available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedqssl.config import RunConfig
from fedqssl.data.cifar import LAYOUTS
from fedqssl.data.fetch import cache_folder
from fedqssl.data.from_config import server_images, settled, training_split
from fedqssl.data.partition import client_names
from fedqssl.data.splits import Partition

CIFAR_IMAGES = 50_000
CIFAR_CLASSES = {"cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class Sizes:
    """Training images by client, the buffer's images, and an image's shape.

    Args:
        clients: training images by client name.
        buffer: images of the server's buffer D_g.
        image: (C, H, W).
        note: what was assumed; empty if everything was counted.
        classes: number of classes; for supervised algorithms.
    """

    clients: Mapping[str, int]
    buffer: int
    image: tuple[int, int, int] = (3, 32, 32)
    note: str = ""
    classes: int = 10

    @property
    def assumed(self) -> bool:
        """Whether the numbers were assumed rather than counted."""
        return bool(self.note)


def sizes_of(partition: Partition, image: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> Sizes:
    """The sizes of an existing partition."""
    counts = {name: len(split.train) for name, split in partition.clients.items()}
    return Sizes(counts, len(partition.buffer), image, classes=classes)


def client_sizes(config: RunConfig) -> Sizes:
    """The sizes that a run of this configuration would have; nothing is downloaded.

    Raises:
        DataError, PartitionError: as the run would.
    """
    if _missing(config, config.data):
        return assumed_sizes(config)
    config, _ = settled(config)
    train, partition = training_split(config)
    channels, height, width = train.images.shape[1:]
    found = sizes_of(partition, (channels, height, width), train.num_classes or 10)
    if config.buffer is None:
        return found
    public = None if _missing(config, config.buffer) else server_images(config, channels)
    return replace(found, buffer=config.buffer_images if public is None else len(public))


def _missing(config: RunConfig, data: str) -> bool:
    """Whether this is an official CIFAR archive that is not on this machine."""
    if data not in LAYOUTS:
        return False
    layout = LAYOUTS[data]
    places = [cache_folder()] if config.data_dir is None else [config.data_dir.expanduser(), cache_folder()]
    folders = (layout.binary, layout.python)
    return not any(place.name in folders or (place / f).is_dir() for place in places for f in folders)


def assumed_sizes(config: RunConfig) -> Sizes:
    """CIFAR's known 50,000 images (or ``images`` of them), split evenly whatever ``partition`` says."""
    if config.partition == "natural":
        raise ValueError(f"{config.data} has no natural groups; set partition=dirichlet, or iid")
    count = min(CIFAR_IMAGES, config.images or CIFAR_IMAGES)
    taken = round(count * (config.buffer_ratio or 0))
    share = (count - taken) // config.clients
    buffer = taken if config.buffer is None else config.buffer_images
    train = share - round(share * config.evaluation.holdout)
    if train < 1:
        raise ValueError(f"{count} images are too few for {config.clients} clients; use fewer clients or more images")
    split = "" if config.partition == "iid" else f"; the run splits them by {config.partition}"
    image = (3, config.image_size, config.image_size)
    note = f"{config.data} is not on this machine: {count:,} images assumed, split evenly{split}"
    return Sizes(dict.fromkeys(client_names(config.clients), train), buffer, image, note, CIFAR_CLASSES[config.data])


__all__ = ["Sizes", "assumed_sizes", "client_sizes", "sizes_of"]
