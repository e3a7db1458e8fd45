"""The common workload, that of pfl-research's CIFAR-10 benchmark: 50 images per user, 50 users per iteration, SGD."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGES, COHORT, BATCH, RATE, CLASSES = 50, 50, 10, 0.1, 10
BEGIN, END = "the measured iterations begin", "they end"


class Encoder(nn.Module):
    """Two convolutions and a hidden layer of pfl-research's ``simple_cnn``, for 32x32 images in colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(12544, 128), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, 32, 32) in [0, 1] to features (N, 128)."""
        features: Tensor = self.layers(x)
        return features


def simple_cnn() -> nn.Module:
    """The whole network: 1,626,442 parameters, no batch norm."""
    return nn.Sequential(Encoder(), nn.Linear(128, CLASSES))


class User(NamedTuple):
    """One user's images, uint8 (50, 3, 32, 32), and labels (50,)."""

    images: Tensor
    labels: Tensor


class Asked(NamedTuple):
    """The arguments of a process."""

    users: Sequence[User]
    data: str
    iterations: int
    processes: int
    bits: int

    @property
    def cohort(self) -> int:
        """Users of an iteration; all if there are fewer."""
        return min(COHORT, len(self.users))


def asked(arguments: Sequence[str] = ()) -> Asked:
    """What this process is to do; tensors of all users share the memory of one array."""
    path, iterations, processes, bits = arguments or sys.argv[1:5]
    torch.set_num_threads(1)
    with np.load(f"{path}/train.npz") as found:
        images, labels = torch.from_numpy(found["images"]), torch.from_numpy(found["labels"])
    users = [User(*parts) for parts in zip(torch.split(images, IMAGES), torch.split(labels, IMAGES), strict=True)]
    return Asked(users, path, int(iterations), int(processes), int(bits))


def cohort(users: int, iteration: int) -> list[int]:
    """The users of an iteration."""
    return [int(user) for user in np.random.default_rng(iteration).choice(users, min(COHORT, users), replace=False)]


def train(model: nn.Module, user: User, seed: int) -> None:
    """One epoch of plain SGD on a user's images."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    order = torch.randperm(len(user.images), generator=torch.Generator().manual_seed(seed))
    for index in torch.split(order, BATCH):
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(user.images[index].float() / 255), user.labels[index]))
        optimizer.step()


def iterate(iterations: int, one: Callable[[int], object]) -> None:
    """Iteration 0 warms up; the others are measured."""
    for iteration in range(iterations + 1):
        if iteration == 1:
            say(BEGIN)
        one(iteration)
    say(END)


def say(line: str) -> None:
    """Tell the measuring process."""
    print(line, flush=True)


__all__ = [
    "BATCH",
    "BEGIN",
    "CLASSES",
    "COHORT",
    "END",
    "IMAGES",
    "RATE",
    "Asked",
    "Encoder",
    "User",
    "asked",
    "cohort",
]
__all__ += ["iterate", "say", "simple_cnn", "train"]
