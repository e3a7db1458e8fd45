"""What a process needs to play either role of a run: task, images, partition; the same in every process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedqssl.config import ConfigError, RunConfig
from fedqssl.data.fetch import Progress
from fedqssl.data.from_config import training_split
from fedqssl.data.images import ImageSet
from fedqssl.data.partition import Partition
from fedqssl.data.registry import load_dataset
from fedqssl.federated.algorithms import Algorithm, get_algorithm
from fedqssl.federated.client import LocalJob
from fedqssl.federated.order import Member, Order
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions


@dataclass(frozen=True, eq=False)
class Context:
    """A run's configuration with everything that derives from it.

    In a simulation ``train`` holds all images, and the partition says whose they are. On real machines clients keep theirs:
    ``train`` and ``test`` are the server's labeled images for the evaluation (none without), ``public`` its buffer, and the
    partition tells no more than how many images each client has.
    """

    config: RunConfig
    task: Task
    train: ImageSet
    test: ImageSet
    partition: Partition
    bits: dict[str, int]
    public: torch.Tensor | None = None

    @property
    def algorithm(self) -> Algorithm:
        """The run's algorithm."""
        return get_algorithm(self.config.algorithm)

    @property
    def labels(self) -> torch.Tensor | None:
        """What the partition's indices point at; None for data without labels, and where clients keep theirs."""
        return self.train.labels if self.public is None else None

    def order(self, round_number: int, lr: float, return_model: bool = False) -> Order:
        """What the server tells every client of a round with this learning rate."""
        low, config = self.config.lowbit, self.config
        how = low.rule, low.scale, low.rounding, config.fedprox.mu, return_model
        return Order(round_number, lr, config.algorithm, self.task, config.local_epochs, *how)

    def member(self, name: str) -> Member:
        """A client's own images and labels."""
        index, labels = self.partition.clients[name].train, self.labels
        return Member(name, self.bits[name], self.train.images[index], None if labels is None else labels[index])

    def buffer(self) -> torch.Tensor:
        """Images of the server's buffer D_g."""
        return self.train.images[self.partition.buffer] if self.public is None else self.public

    def for_workers(self) -> Context:
        """What the server's workers need of it: where clients keep their images, the buffer is all there is."""
        if self.public is None:
            return self
        buffer = Partition(torch.arange(len(self.public)), {})
        return replace(self, train=ImageSet(self.public), test=ImageSet(self.public[:0]), partition=buffer, public=None)

    def local_job(self, name: str, round_number: int, lr: float) -> LocalJob:
        """What this client does in a round with this learning rate."""
        return self.order(round_number, lr).job(self.member(name))

    def everyone(self) -> torch.Tensor:
        """Indices of all clients' training images.

        Raises:
            ValueError: they are not in one place.
        """
        if self.public is not None:
            raise ValueError(f"{self.config.algorithm} needs all clients' images in one place, and they are not")
        return torch.cat([self.partition.clients[name].train for name in sorted(self.bits)])


def class_count(train: ImageSet, test: ImageSet) -> int:
    """How many classes the labels name; 0 without labels."""
    return max((1 + int(s.labels.max()) for s in (train, test) if s.labels is not None and len(s.labels)), default=0)


def make_task(config: RunConfig, channels: int, classes: int) -> Task:
    """What every role of this run must share."""
    return Task(
        model=config.model,
        width=config.width,
        in_channels=channels,
        objective=get_algorithm(config.algorithm).objective or config.objective,
        temperature=config.ssl.temperature,
        batch_size=config.batch_size,
        seed=config.seed,
        options=LowBitOptions(weights=config.lowbit.weights, activation_clip=config.lowbit.activation_clip),
        classes=classes,
    )


def build_context(config: RunConfig, progress: Progress | None = None) -> Context:
    """Load the images and split them; deterministic in the configuration. ``progress`` is told about downloads."""
    train, partition = training_split(config, progress)
    test = load_dataset(config.data, "test", config.data_dir, on_bad=config.on_bad, progress=progress)
    task = make_task(config, train.images.shape[1], class_count(train, test))
    if config.min_clients > len(partition.clients):
        raise ConfigError(
            f"min_clients = {config.min_clients} is more than the {len(partition.clients)} clients there are"
        )
    if task.supervised and (train.labels is None or test.labels is None):
        raise ValueError(f"{config.algorithm} trains with labels, but {config.data} has none; use fed_qssl")
    return Context(config, task, train, test, partition, config.bits_for(list(partition.clients)))
