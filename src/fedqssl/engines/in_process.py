"""The default engine: both roles on this machine, clients of a round in worker processes (``workers``; one worker runs inline).

Workers get bytes and return bytes; what they compute depends on (seed, client, round) alone, so any number of them gives the
same bytes for equal ``threads``.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import Any

import torch

from fedqssl.config import RunConfig
from fedqssl.engines.context import Context, build_context
from fedqssl.federated.client import ClientMetrics, local_update
from fedqssl.federated.server import dequantize, requantize
from fedqssl.federated.state import State, read_state
from fedqssl.lowbit import load_bytes

Say = Callable[[str], None]
_CONTEXT: Context | None = None


def _set_up(config: RunConfig) -> None:
    global _CONTEXT
    torch.set_num_threads(config.threads)
    _CONTEXT = build_context(config)


def _train(context: Context, name: str, payload: bytes, round_number: int, lr: float) -> tuple[bytes, ClientMetrics]:
    images = context.train.images[context.partition.clients[name].train]
    return local_update(payload, name, round_number, images, context.task, context.local_settings(name, lr))


def _dequantize(context: Context, name: str, payload: bytes, round_number: int, lr: float) -> tuple[State, float]:
    buffer = context.train.images[context.partition.buffer]
    epochs = context.config.server.dequantize_epochs
    return dequantize(payload, context.bits[name], buffer, context.task, round_number, epochs, lr)


def _requantize(context: Context, bits: int, state: State, round_number: int, lr: float, epochs: int) -> bytes:
    buffer = context.train.images[context.partition.buffer]
    return requantize(state, bits, buffer, context.task, round_number, epochs, lr)


def _in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    assert _CONTEXT is not None
    return function(_CONTEXT, *arguments)


class InProcess:
    """Runs the jobs of a round; use as a context manager, so that worker processes end with it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.workers = min(context.config.workers, max(len(context.bits), 1))
        self.pool: ProcessPoolExecutor | None = None
        self.round_number, self.server_lr = 0, 0.0

    def __enter__(self) -> InProcess:
        torch.set_num_threads(self.context.config.threads)
        if self.workers > 1:
            spawn = multiprocessing.get_context("spawn")  # fork would copy a process with live OpenMP threads
            self.pool = ProcessPoolExecutor(self.workers, spawn, _set_up, (self.context.config,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        """Results by job key, whatever the order in which they come."""
        if self.pool is None:
            return {key: function(self.context, *arguments) for key, arguments in jobs.items()}
        futures: dict[Future[Any], Any] = {
            self.pool.submit(_in_worker, function, *arguments): key for key, arguments in jobs.items()
        }
        done = {futures[future]: future.result() for future in as_completed(futures)}
        return {key: done[key] for key in jobs}

    def train(
        self, payloads: Mapping[str, bytes], round_number: int, lr: float
    ) -> dict[str, tuple[bytes, ClientMetrics]]:
        """Local training of the clients that got a payload; the largest start first, so that workers end together."""
        size = {n: len(self.context.partition.clients[n].train) for n in payloads}
        order = sorted(payloads, key=lambda n: (-size[n], n))
        found = self._run(_train, {n: (n, payloads[n], round_number, lr) for n in order})
        return {n: found[n] for n in sorted(found)}

    def server_round(self, round_number: int, lr: float) -> None:
        """Set the round and learning rate of the server's operators."""
        self.round_number, self.server_lr = round_number, lr

    def dequantize(self, payloads: Mapping[str, bytes], bits: Mapping[str, int]) -> dict[str, tuple[State, float]]:
        """See :class:`fedqssl.federated.algorithms.Workers`."""
        return self._run(
            _dequantize, {n: (n, payloads[n], self.round_number, self.server_lr) for n in sorted(payloads)}
        )

    def requantize(self, state: State, bits: set[int], epochs: int | None = None) -> dict[int, bytes]:
        """See :class:`fedqssl.federated.algorithms.Workers`."""
        count = self.context.config.server.requantize_epochs if epochs is None else epochs
        return self._run(_requantize, {b: (b, state, self.round_number, self.server_lr, count) for b in sorted(bits)})

    def read(self, payloads: Mapping[str, bytes], bits: Mapping[str, int]) -> dict[str, State]:
        """See :class:`fedqssl.federated.algorithms.Workers`."""
        states = {}
        for name in sorted(payloads):
            model = self.context.task.converted(bits[name])
            load_bytes(model, payloads[name])
            states[name] = read_state(model)
        return states
