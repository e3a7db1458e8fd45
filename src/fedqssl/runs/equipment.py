"""What a run works with, from its first round to its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedqssl import accelerators
from fedqssl.engines.engine import Engine
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import Context
from fedqssl.runs.clock import Clock
from fedqssl.runs.folder import Checkpoint, RunFolder
from fedqssl.runs.progress import Progress


def _nobody_new(context: Context, checkpoint: Checkpoint) -> tuple[Context, Checkpoint]:
    return context, checkpoint


@dataclass(frozen=True, eq=False)
class Equipment:
    """The equipment of one run.

    Args:
        engine: carries models to the clients and back.
        pool: does the server's work and the evaluation.
        folder: where everything is kept.
        progress: what the user sees.
        arrivals: called before each round; returns new clients with their bits, size and first model.
        clock: simulated times of the clients, if the run has such a clock.
        accuracies: of each client's own model on its own held-out images, if only the clients can measure them.
    """

    engine: Engine
    pool: Pool[Any]
    folder: RunFolder
    progress: Progress
    arrivals: Callable[[Context, Checkpoint], tuple[Context, Checkpoint]] = _nobody_new
    accuracies: Callable[[Context, Mapping[str, bytes]], dict[str, float]] | None = None
    clock: Clock | None = None


C = TypeVar("C", bound=Context)


def pool_of(context: C, progress: Progress, clients: int | None = None) -> Pool[C]:
    """The worker processes of a run: no more than there are clients."""
    config = context.config
    most = accelerators.workers(config.device, config.workers, config.workers_per_gpu)
    workers = min(most, max(len(context.bits) if clients is None else clients, 1))
    return Pool(context, workers, config.threads, progress.tick, accelerators.environments(config.device))


__all__ = ["Equipment", "pool_of"]
