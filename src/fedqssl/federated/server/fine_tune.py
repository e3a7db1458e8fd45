"""Full-precision training of one state in one place: used by the server-side controls and by de-quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedqssl.federated.randomness import generator
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Loss, Task, batches, train_steps
from fedqssl.lowbit import LowBitSGD

SETTLE_BATCHES = 100
"""Batches used to estimate batch-norm statistics: at momentum 0.1, 0.003% of the initial value is left."""


def fine_tune(
    state: State,
    images: Tensor,
    task: Task,
    purpose: tuple[object, ...],
    steps: int,
    lr: float,
    done: Callable[[int], None] = lambda steps: None,
    loss_of: Loss | None = None,
) -> tuple[State, float]:
    """The state after so many steps of plain SGD, and the mean loss of the last epoch (without steps: of a pass without updates).

    Batches and views derive from (seed, purpose): equal purposes see the same ones. ``loss_of`` replaces the task's loss.
    """
    full = task.converted(32)
    write_state(full, state)
    full.to(images.device)
    draws = generator(task.seed, *purpose)
    opt = LowBitSGD(full, lr) if steps else None
    losses = train_steps(full, opt, images, task, draws, steps or task.steps(len(images)), None, done, loss_of)
    return {**state, **read_state(full)}, losses[-1]


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """So many threads of torch inside, as many as before afterwards; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def settle(state: State, images: Tensor, task: Task, evenly: int | None = None) -> State:
    """The same weights with batch-norm statistics of these images' views: forward passes, no updates.

    ``evenly`` is a number of batches that count alike: ten are as good as a moving average over a hundred.
    """
    full = task.converted(32)
    write_state(full, state)
    full.to(images.device).train()
    for norm in (m for m in full.modules() if evenly and isinstance(m, _BatchNorm)):
        norm.momentum = None
    draws = generator(task.seed, "settling")
    count = 0
    while count < (evenly or SETTLE_BATCHES):
        for index in batches(len(images), task.batch_size, draws, images.device)[:evenly]:
            full(task.two_views(images[index], draws))
            count += 1
    return {**state, **read_state(full)}
