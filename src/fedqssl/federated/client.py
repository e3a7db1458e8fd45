"""The client's role: ``payload -> (payload, metrics)``. E epochs of low-bit self-supervised training (Algorithm 1, lines 3-9)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import Task, train_epoch
from fedqssl.lowbit import LowBitSGD, load_bytes, to_bytes
from fedqssl.lowbit.optim import Rule, ScalePolicy
from fedqssl.quant import Rounding


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains in one round."""

    bits: int
    epochs: int
    lr: float
    rule: Rule = "stored"
    scale: ScalePolicy = "round"
    rounding: Rounding = "stochastic"


@dataclass(frozen=True)
class ClientMetrics:
    """What a client reports besides its model: nothing of its data but their number."""

    samples: int
    losses: tuple[float, ...]
    skipped_steps: int
    seconds: float


def local_update(
    payload: bytes, name: str, round_number: int, images: Tensor, task: Task, settings: LocalSettings
) -> tuple[bytes, ClientMetrics]:
    """Train the received model on local images and return it, in the client's own bits.

    Pure given its arguments: randomness derives from (seed, client, round).
    """
    started = time.process_time()
    model = task.converted(settings.bits)
    load_bytes(model, payload)
    opt = LowBitSGD(
        model,
        settings.lr,
        rule=settings.rule,
        scale=settings.scale,
        rounding=settings.rounding,
        seed=derived_seed(task.seed, "rounding", name, round_number),
    )
    draws = generator(task.seed, "local training", name, round_number)
    losses = tuple(train_epoch(model, opt, images, task, draws) for _ in range(settings.epochs))
    metrics = ClientMetrics(len(images), losses, opt.skipped, time.process_time() - started)
    return to_bytes(model), metrics
