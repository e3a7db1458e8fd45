"""What a process needs to play either role of a run: task, images, partition; the same in every process."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedqssl.config import RunConfig
from fedqssl.data.images import ImageSet
from fedqssl.data.partition import Partition, build_partition
from fedqssl.data.registry import load_dataset
from fedqssl.federated.client import LocalSettings
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions


@dataclass(frozen=True, eq=False)
class Context:
    """A run's configuration with everything that derives from it."""

    config: RunConfig
    task: Task
    train: ImageSet
    test: ImageSet
    partition: Partition
    bits: dict[str, int]

    def local_settings(self, name: str, lr: float) -> LocalSettings:
        """How this client trains in a round with this learning rate."""
        low = self.config.lowbit
        return LocalSettings(self.bits[name], self.config.local_epochs, lr, low.rule, low.scale, low.rounding)


def build_context(config: RunConfig) -> Context:
    """Load the images and split them; deterministic in the configuration."""
    train = load_dataset(config.data, "train", config.data_dir)
    test = load_dataset(config.data, "test", config.data_dir)
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
    task = Task(
        model=config.model,
        width=config.width,
        in_channels=train.images.shape[1],
        objective=config.objective,
        temperature=config.ssl.temperature,
        batch_size=config.batch_size,
        seed=config.seed,
        options=LowBitOptions(weights=config.lowbit.weights, activation_clip=config.lowbit.activation_clip),
    )
    return Context(config, task, train, test, partition, config.bits_for(list(partition.clients)))
