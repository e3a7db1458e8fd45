"""The client's role: ``payload -> (payload, metrics)``. E epochs of low-bit training (Algorithm 1, lines 3-9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, fx

from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import Task, train_epoch
from fedqssl.lowbit import LowBitSGD, load_bytes, to_bytes
from fedqssl.lowbit.optim import Rule, ScalePolicy
from fedqssl.quant import Rounding


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains in one round; ``mu`` is FedProx's, and no other algorithm looks at it."""

    bits: int
    epochs: int
    lr: float
    rule: Rule = "stored"
    scale: ScalePolicy = "round"
    rounding: Rounding = "stochastic"
    mu: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalJob:
    """What one client does in one round, its own images included; labels only reach supervised algorithms."""

    name: str
    round_number: int
    images: Tensor
    task: Task
    settings: LocalSettings
    labels: Tensor | None = None


@dataclass(frozen=True)
class ClientMetrics:
    """What a client reports besides its model: nothing of its data but their number."""

    samples: int
    losses: tuple[float, ...]
    skipped_steps: int
    seconds: float


Client = Callable[[bytes, LocalJob], tuple[bytes, ClientMetrics]]
"""The client's part of an algorithm: pure given its arguments; a function of a module, so that workers can import it."""


def train_locally(payload: bytes, job: LocalJob, proximal: float = 0.0) -> tuple[fx.GraphModule, ClientMetrics]:
    """Train the received model on local images; randomness derives from (seed, client, round)."""
    started = time.process_time()
    task, settings = job.task, job.settings
    model = task.converted(settings.bits)
    load_bytes(model, payload)
    opt = LowBitSGD(
        model,
        settings.lr,
        rule=settings.rule,
        scale=settings.scale,
        rounding=settings.rounding,
        proximal=proximal,
        seed=derived_seed(task.seed, "rounding", job.name, job.round_number),
    )
    draws = generator(task.seed, "local training", job.name, job.round_number)
    losses = tuple(train_epoch(model, opt, job.images, task, draws, job.labels) for _ in range(settings.epochs))
    return model, ClientMetrics(len(job.images), losses, opt.skipped, time.process_time() - started)


def local_update(payload: bytes, job: LocalJob) -> tuple[bytes, ClientMetrics]:
    """Train the received model and return it, in the client's own bits."""
    model, metrics = train_locally(payload, job)
    return to_bytes(model), metrics
