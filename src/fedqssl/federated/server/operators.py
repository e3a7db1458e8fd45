"""The server's operators in one round: everything that an algorithm's server part may do with models and the buffer.

The heavy ones are jobs for a pool: the functions below take what every worker shares, then the arguments of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from fedqssl.config import RunConfig
from fedqssl.evaluation.features import extract_features
from fedqssl.federated.server.dequantize import dequantize, steps_each
from fedqssl.federated.server.fine_tune import fine_tune, settle, torch_threads
from fedqssl.federated.server.requantize import requantize
from fedqssl.federated.state import State, read_payload
from fedqssl.federated.task import Loss, Task
from fedqssl.lowbit import NonFiniteError, load_bytes
from fedqssl.lowbit.optim import ScalePolicy

Where = Literal["buffer", "everywhere"]


class ServerContext(Protocol):
    """What the operators need from a run: :class:`fedqssl.federated.context.Context`."""

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        ...

    @property
    def task(self) -> Task:
        """Network and objective."""
        ...

    @property
    def bits(self) -> Mapping[str, int]:
        """By client."""
        ...

    def buffer(self) -> Tensor:
        """Images of D_g."""
        ...

    def everyone(self) -> Tensor:
        """All clients' training images, if they are in one place."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether clients are simulated, and randomness may be known to everybody."""
        ...


class Jobs(Protocol):
    """Runs jobs: :class:`fedqssl.engines.pool.Pool`."""

    def tick(self, what: str, done: int, total: int) -> None:
        """Show progress."""

    def run(self, what: str, function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        """``function(context, *arguments)`` of every job, by key."""
        ...


def _dequantize(
    context: ServerContext, bits: int, payload: bytes, round_number: int, lr: float, steps: int
) -> tuple[State, float]:
    try:
        return dequantize(payload, bits, context.buffer(), context.task, round_number, steps, lr)
    except NonFiniteError:
        return {}, float("nan")


def _embed(context: ServerContext, bits: int, payload: bytes) -> Tensor:
    model = context.task.converted(bits)
    load_bytes(model, payload, checked=True)
    buffer = context.buffer()
    return extract_features(model.to(buffer.device), buffer).cpu()


def requantize_as_configured(
    context: ServerContext, bits: int, state: State, round_number: int, lr: float, epochs: int
) -> bytes:
    """A state in so many bits, as the run's settings say; ``lowbit.scale`` counts only where it is ``grow``."""
    start, scale = context.config.server.requantize_start, context.config.lowbit.scale
    kept: ScalePolicy = "grow" if scale == "grow" else "round"
    return requantize(state, bits, context.buffer(), context.task, round_number, epochs, lr, start, kept)


@dataclass(frozen=True, eq=False)
class ServerOperators:
    """What an algorithm's server part works with in one round; results are keyed by client name, never ordered.

    Args:
        context: the run's settings, task, clients and buffer.
        jobs: where the work is done.
        round_number: from 0.
        lr: the clients' learning rate in this round.
        server_lr: the server's.
        aggregated: the aggregated model before the round, if there is one.
        known: uploads that were read when they were checked, by client, with their states, so that they are not read twice.
    """

    context: ServerContext
    jobs: Jobs
    round_number: int
    lr: float
    server_lr: float
    aggregated: bytes | None
    known: Mapping[str, tuple[bytes, State]] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether this is the run's last round."""
        return self.round_number + 1 == self.context.config.rounds

    def before(self) -> State:
        """The aggregated state that the round began with."""
        if self.aggregated is None:
            raise ValueError("there is no aggregated model yet")
        return read_payload(self.aggregated, 32, self.context.task)

    def read(self, payloads: Mapping[str, bytes]) -> dict[str, State]:
        """The float states of received models."""
        return {n: self._state(n, payloads[n]) for n in sorted(payloads)}

    def _state(self, name: str, payload: bytes) -> State:
        upload, state = self.known.get(name, (None, {}))
        return state if payload is upload else read_payload(payload, self.context.bits[name], self.context.task)

    def server_steps(self, models: int) -> int:
        """Steps on the buffer in this round, in all: ``server.steps``, or the configured epochs for each of so many models."""
        server = self.context.config.server
        if server.dequantize_epochs is None:
            return server.steps or 0
        return server.dequantize_epochs * self.context.task.steps(len(self.context.buffer())) * models

    def dequantize(self, payloads: Mapping[str, bytes]) -> dict[str, tuple[State, float]]:
        """De-quantize each client's model on the buffer: ``w'_k`` and ``L_DQ_k``, NaN for one that diverges.

        All get the same number of steps (:func:`steps_each`).
        """
        bits, each = self.context.bits, steps_each(self.server_steps(len(payloads)), len(payloads))
        jobs = {n: (bits[n], payloads[n], self.round_number, self.server_lr, each) for n in sorted(payloads)}
        return self.jobs.run("de-quantize", _dequantize, jobs)

    def embed(self, payloads: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Outputs (N, d) of each client's model, in its own bits, for the buffer's N images as they are: forward passes only."""
        jobs = {n: (self.context.bits[n], payloads[n]) for n in sorted(payloads)}
        return self.jobs.run("embed the buffer", _embed, jobs)

    def requantize(self, state: State, epochs: int | None = None) -> dict[str, bytes]:
        """A state in every client's own bits, made once per bitwidth; ``epochs`` overrides the configured fine-tuning."""
        count = self.context.config.server.requantize_epochs if epochs is None else epochs
        bits = sorted(set(self.context.bits.values()))
        jobs = {b: (b, state, self.round_number, self.server_lr, count) for b in bits}
        made = self.jobs.run("re-quantize", requantize_as_configured, jobs)
        return {name: made[b] for name, b in self.context.bits.items()}

    def round_to_bits(self, state: State) -> dict[str, bytes]:
        """A state in every client's own bits, rounded to nearest: no work on the buffer."""
        return self.requantize(state, epochs=0)

    def train(
        self,
        state: State,
        where: Where,
        epochs: int | None = None,
        *,
        steps: int | None = None,
        loss: Loss | None = None,
    ) -> tuple[State, float]:
        """Full-precision training, epochs or steps, on the buffer or, at the clients' learning rate, on all their images.

        ``loss`` of (outputs, indices of the images) replaces the run's. Also returns the mean loss of the last epoch.
        """
        images, lr = (
            (self.context.buffer(), self.server_lr) if where == "buffer" else (self.context.everyone(), self.lr)
        )
        task, purpose = self.context.task, (where, self.round_number)
        count = (epochs or 0) * task.steps(len(images)) if steps is None else steps

        def tick(done: int) -> None:
            self.jobs.tick(f"training on {where}", done, count)

        with torch_threads(self.context.config.server.threads):
            return fine_tune(state, images, task, purpose, count, lr, tick, loss)

    def settle(self, state: State, evenly: int | None = None) -> State:
        """The same weights with batch-norm statistics of the buffer: a moving average, or of so many batches alone."""
        return settle(state, self.context.buffer(), self.context.task, evenly)


__all__ = ["Jobs", "ServerOperators", "Where", "requantize_as_configured"]
