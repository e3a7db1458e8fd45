"""The client's part: ``payload -> (payload, metrics)``. E epochs or steps of low-bit training (Algorithm 1, lines 3-9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from fedqssl.federated.job import ClientData, Job
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import train_steps
from fedqssl.lowbit import LowBitSGD, load_bytes, to_bytes


@dataclass(frozen=True)
class ClientMetrics:
    """What a client reports besides its model: about its data only the number of images."""

    samples: int
    losses: tuple[float, ...]
    skipped_steps: int
    seconds: float


Client = Callable[[bytes, Job, ClientData], tuple[bytes, ClientMetrics]]
"""The client's part of an algorithm: a pure function of its arguments, defined at module level so that workers can import it."""


def train_locally(
    payload: bytes, job: Job, data: ClientData, proximal: float = 0.0
) -> tuple[fx.GraphModule, ClientMetrics]:
    """Train the received model on local images, on the device that holds them; randomness derives from (seed, client, round).

    Labels are used only if the task is supervised.
    """
    clock = time.process_time if data.images.device.type == "cpu" else time.perf_counter
    started = clock()
    task = job.task
    model = task.converted(data.bits)
    load_bytes(model, payload)
    model.to(data.images.device)
    opt = LowBitSGD(
        model,
        job.lr,
        rule=job.rule,
        scale=job.scale,
        rounding=job.rounding,
        proximal=proximal,
        seed=derived_seed(task.seed, "rounding", data.name, job.round_number),
    )
    draws = generator(task.seed, "local training", data.name, job.round_number)
    labels = data.labels if task.supervised else None
    count = len(data.images)
    losses = train_steps(model, opt, data.images, task, draws, job.steps_of(count), labels)
    opt.draw_codes()
    return model, ClientMetrics(count, tuple(losses), opt.skipped, clock() - started)


def local_update(payload: bytes, job: Job, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """Train the received model and return it, in the client's own bits."""
    model, metrics = train_locally(payload, job, data)
    return to_bytes(model), metrics
