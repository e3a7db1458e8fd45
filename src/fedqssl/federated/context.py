"""What a run's processes share: settings, task, clients and images, in a simulation and in a fleet of real machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedqssl.accelerators import put, resolve
from fedqssl.config import ConfigError, RunConfig
from fedqssl.data.fetch import DownloadProgress
from fedqssl.data.from_config import load_split, server_images, training_split
from fedqssl.data.images import ImageSet
from fedqssl.data.splits import Partition, label_counts
from fedqssl.federated.algorithms import Algorithm, get_algorithm
from fedqssl.federated.job import ClientData, Job
from fedqssl.federated.task import SUPERVISED, Task
from fedqssl.lowbit import LowBitOptions
from fedqssl.ssl.presets import view_config


@dataclass(frozen=True, eq=False)
class Context(ABC):
    """A run's configuration with everything derived from it.

    Args:
        config: the settings.
        task: what server and clients share.
        bits: bitwidth by client.
        train: images for training the classifier that measures the global accuracy, if they have labels.
        test: held-out images for the same purpose.
    """

    config: RunConfig
    task: Task
    bits: dict[str, int]
    train: ImageSet
    test: ImageSet

    @property
    def algorithm(self) -> Algorithm:
        """The run's algorithm."""
        return get_algorithm(self.config.algorithm)

    @property
    def simulated(self) -> bool:
        """Whether all clients are on this machine, so that nothing is secret."""
        return isinstance(self, Simulation)

    @property
    def device(self) -> torch.device:
        """What this process computes on: ``device`` of the settings."""
        return resolve(self.config.device)

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Number of training images by client."""

    @abstractmethod
    def buffer(self) -> Tensor:
        """The images of the server's buffer D_g, on the device."""

    @abstractmethod
    def everyone(self) -> Tensor:
        """All clients' training images in one place.

        Raises:
            ValueError: the images are not in one place.
        """

    @abstractmethod
    def partition_json(self) -> dict[str, object]:
        """For ``partition.json``: which images each client holds, or how many."""

    @abstractmethod
    def label_counts(self) -> dict[str, dict[str, list[int]]] | None:
        """Images of each class by client and split; None if labels are unknown."""

    def job(self, round_number: int, lr: float, return_model: bool = False) -> Job:
        """The job of every client in a round with this learning rate."""
        low, config = self.config.lowbit, self.config
        how = low.rule, low.scale, low.rounding, config.fedprox.mu, return_model, config.local_steps
        return Job(round_number, lr, config.algorithm, self.task, config.local_epochs, *how)


@dataclass(frozen=True, eq=False)
class Simulation(Context):
    """A run on one machine: all images are here, and the partition assigns them to clients.

    Args:
        partition: who holds which of the training images.
        public: the server's buffer D_g if it has images of its own; otherwise the partition names those of the buffer.
    """

    partition: Partition
    public: Tensor | None = None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of training images by client."""
        return self.partition.sizes()

    def buffer(self) -> Tensor:
        """The images of the server's buffer D_g, on the device."""
        return put(self.train.images[self.partition.buffer] if self.public is None else self.public, self.device)

    def client(self, name: str) -> ClientData:
        """A client's own images and labels, on the device."""
        index, labels, device = self.partition.clients[name].train, self.train.labels, self.device
        own = None if labels is None else put(labels[index], device)
        return ClientData(name, self.bits[name], put(self.train.images[index], device), own)

    def everyone(self) -> Tensor:
        """All clients' training images, on the device."""
        index = torch.cat([self.partition.clients[name].train for name in sorted(self.bits)])
        return put(self.train.images[index], self.device)

    def partition_json(self) -> dict[str, object]:
        """Which images each client holds, and the buffer; the number of the server's own images, which have no positions here."""
        return self.partition.to_json() | ({} if self.public is None else {"buffer": len(self.public)})

    def label_counts(self) -> dict[str, dict[str, list[int]]] | None:
        """Images of each class by client and split."""
        return None if self.train.labels is None else label_counts(self.partition, self.train.labels)


@dataclass(frozen=True, eq=False)
class FleetContext(Context):
    """A run on real machines: clients keep their images; the server knows only their number, and holds its own buffer.

    Args:
        public: the server's buffer D_g.
        samples: numbers of training and test images that each client reported when it joined.
    """

    public: Tensor
    samples: Mapping[str, tuple[int, int]]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of training images by client."""
        return {name: train for name, (train, _) in self.samples.items()}

    def buffer(self) -> Tensor:
        """The images of the server's buffer D_g, on the device."""
        return put(self.public, self.device)

    def everyone(self) -> Tensor:
        """Not here."""
        raise ValueError(
            f"{self.config.algorithm} needs all clients' images in one place, which is not possible on real machines"
        )

    def partition_json(self) -> dict[str, object]:
        """How many images each client holds."""
        clients = {name: {"train": train, "test": test} for name, (train, test) in self.samples.items()}
        return {"buffer": len(self.public), "clients": clients}

    def label_counts(self) -> None:
        """Unknown to the server."""


def class_count(train: ImageSet, test: ImageSet) -> int:
    """Number of classes; 0 without labels."""
    return max((1 + int(s.labels.max()) for s in (train, test) if s.labels is not None and len(s.labels)), default=0)


def make_task(config: RunConfig, channels: int, classes: int) -> Task:
    """What the server and all clients of this run share.

    Supervised models end in a classifier: ``features`` and ``image_contrast`` are not for them.
    """
    objective = get_algorithm(config.algorithm).objective or config.objective
    return Task(
        model=config.model,
        width=config.width,
        in_channels=channels,
        objective=objective,
        temperature=config.ssl.temperature,
        batch_size=config.batch_size,
        seed=config.seed,
        options=LowBitOptions(
            config.lowbit.weights,
            activation_clip=config.lowbit.activation_clip,
            skip=config.lowbit.skip,
            gradient_centres=config.lowbit.gradient_centres,
        ),
        classes=classes,
        views=view_config(config.views),
        classifier=config.evaluation.classifier,
        features="pooled" if objective == SUPERVISED else config.features,
        image_size=config.image_size,
        momentum=config.ssl.momentum,
        contrast="as_is" if objective == SUPERVISED else config.image_contrast,
    )


def simulation_to_read(config: RunConfig) -> Simulation:
    """:func:`build_simulation` of a run that others look at, on the CPU: their machine may lack the run's GPU."""
    return build_simulation(config.model_copy(update={"device": "cpu"}))


def build_simulation(config: RunConfig, progress: DownloadProgress | None = None) -> Simulation:
    """Load the images and split them; deterministic in the configuration. ``progress`` is called during downloads."""
    train, partition = training_split(config, progress)
    test = load_split(config, "test", progress)
    task = make_task(config, train.images.shape[1], class_count(train, test))
    if config.min_clients > len(partition.clients):
        raise ConfigError(
            f"min_clients = {config.min_clients} is more than the number of clients, {len(partition.clients)}"
        )
    if task.supervised and (train.labels is None or test.labels is None):
        raise ValueError(f"{config.algorithm} trains with labels, but {config.data} has none; use fed_qssl")
    public = server_images(config, train.images.shape[1], progress)
    return Simulation(config, task, config.bits_for(list(partition.clients)), train, test, partition, public)


__all__ = [
    "Context",
    "FleetContext",
    "Simulation",
    "build_simulation",
    "class_count",
    "make_task",
    "simulation_to_read",
]
