"""Full-precision training of one state in one place: what the server's controls do, and the heart of de-quantization."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedqssl.federated.randomness import generator
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Task, batches, train_epoch
from fedqssl.lowbit import LowBitSGD

SETTLE_BATCHES = 100
"""Batches behind settled batch-norm statistics: at momentum 0.1, 0.003% of the start is left."""


def fine_tune(
    state: State,
    images: Tensor,
    task: Task,
    purpose: tuple[object, ...],
    epochs: int,
    lr: float,
    done: Callable[[int], None] = lambda epoch: None,
) -> tuple[State, float]:
    """The state after ``epochs`` of plain SGD, and the mean loss of the last one (with no epochs: of a pass without updates).

    Batches and views derive from (seed, purpose): equal purposes see the same ones.
    """
    full = task.converted(32)
    write_state(full, state)
    draws = generator(task.seed, *purpose)
    opt, loss = LowBitSGD(full, lr), float("nan")
    for epoch in range(epochs):
        loss = train_epoch(full, opt, images, task, draws)
        done(epoch + 1)
    if not epochs:
        loss = train_epoch(full, None, images, task, draws)
    return {**state, **read_state(full)}, loss


@torch.no_grad()
def settle(state: State, images: Tensor, task: Task) -> State:
    """The same weights with batch-norm statistics of these images' views: forward passes, no updates."""
    full = task.converted(32)
    write_state(full, state)
    full.train()
    draws = generator(task.seed, "settling")
    count = 0
    while count < SETTLE_BATCHES:
        for index in batches(len(images), task.batch_size, draws):
            full(task.two_views(images[index], draws))
            count += 1
    return {**state, **read_state(full)}
