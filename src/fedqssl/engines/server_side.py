"""The server's operators on this machine, in worker processes (``workers``; one worker runs inline): every engine's server half.

ServerOperators get bytes and return bytes or figures; what they compute depends on (seed, client, round) alone, so any number of
them gives the same for equal ``threads``. They end with their parent, however that ends, and Ctrl-C is the parent's alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import torch

from fedqssl.engines.context import Context
from fedqssl.engines.engine import Key
from fedqssl.engines.malloc import keep_freed_memory
from fedqssl.engines.shared_images import Attachment, SharedImages
from fedqssl.federated.algorithms.base import Where
from fedqssl.federated.server import dequantize, fine_tune, requantize, settle
from fedqssl.federated.state import State, read_payload
from fedqssl.lowbit import NonFiniteError

Tick = Callable[[str, int, int], None]
"""(what is being done, how many are done, of how many)."""
Self = TypeVar("Self", bound="ServerSide")
_CONTEXT: Context | None = None


def no_tick(what: str, done: int, total: int) -> None:
    """Show nothing."""


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _die_with_parent(lifeline: Connection) -> None:
    """End this process at once, in the middle of a job or not, when nobody holds the other end of the lifeline."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


@contextlib.contextmanager
def _starting_workers() -> Iterator[None]:
    """Processes started meanwhile never notice Ctrl-C, which waits, and do not run the user's script again.

    Python's spawn imports the main module in every new process, which starts runs within runs unless a script guards against it;
    our workers need nothing of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_up(attachment: Attachment, lifeline: Connection) -> None:
    global _CONTEXT
    if lifeline.poll():
        os._exit(1)  # the parent is gone already
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(attachment.context.config.threads)
    keep_freed_memory()
    _CONTEXT = attachment.open()


def _dequantize(context: Context, bits: int, payload: bytes, round_number: int, lr: float) -> tuple[State, float]:
    epochs = context.config.server.dequantize_epochs
    try:
        return dequantize(payload, bits, context.buffer(), context.task, round_number, epochs, lr)
    except NonFiniteError:
        return {}, float("nan")


def _requantize(context: Context, bits: int, state: State, round_number: int, lr: float, epochs: int) -> bytes:
    return requantize(state, bits, context.buffer(), context.task, round_number, epochs, lr)


def _in_worker(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """The result, and this worker's peak memory."""
    assert _CONTEXT is not None
    return function(_CONTEXT, *arguments), peak_memory()


class ServerSide:
    """The :class:`fedqssl.federated.algorithms.ServerOperators` of a round; a context manager."""

    def __init__(self, context: Context, tick: Tick = no_tick) -> None:
        self.context, self.tick = context, tick
        self.workers = min(context.config.workers, max(len(context.bits), 1))
        self.pool: ProcessPoolExecutor | None = None
        self.shared: SharedImages | None = None
        self.lifeline: Connection | None = None
        self.workers_peak = 0
        self.round_number, self.lr, self.server_lr = 0, 0.0, 0.0
        self.aggregated: bytes | None = None

    def __enter__(self: Self) -> Self:
        torch.set_num_threads(self.context.config.threads)
        keep_freed_memory()
        if self.workers > 1:
            spawn = multiprocessing.get_context("spawn")  # fork would copy a process with live OpenMP threads
            self.shared = SharedImages(self.context.for_workers())
            theirs, self.lifeline = spawn.Pipe(duplex=False)
            self.pool = ProcessPoolExecutor(self.workers, spawn, _set_up, (self.shared.__enter__(), theirs))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pool is not None and self.lifeline is not None:
            if error is not None:
                self.lifeline.close()  # do not wait for jobs that nobody wants any more
            self.pool.shutdown(wait=True, cancel_futures=True)
            self.lifeline.close()
        if self.shared is not None:
            self.shared.__exit__(kind, error, trace)

    def _run(
        self, what: str, function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], here: bool = False
    ) -> dict[Any, Any]:
        """Results by job key, whatever the order in which they come; ``here``: in this process in any case."""
        done: dict[Any, Any] = {}
        self.tick(what, 0, len(jobs))
        if self.pool is None or here:
            for key, arguments in jobs.items():
                done[key] = function(self.context, *arguments)
                self.tick(what, len(done), len(jobs))
            return done
        try:
            with _starting_workers():
                futures: dict[Future[Any], Any] = {
                    self.pool.submit(_in_worker, function, *arguments): key for key, arguments in jobs.items()
                }
            for future in as_completed(futures):
                done[futures[future]], peak = future.result()
                self.workers_peak = max(self.workers_peak, peak)
                self.tick(what, len(done), len(jobs))
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process died, perhaps for lack of memory (workers = 1 in config.toml needs less)"
            ) from error
        return {key: done[key] for key in jobs}

    def evaluate(self, judge: Callable[..., float], jobs: Mapping[Key, tuple[Any, ...]]) -> dict[Key, float]:
        """See :class:`fedqssl.engines.engine.Engine`; in this process where the workers have the buffer alone."""
        return self._run("evaluation", judge, jobs, here=self.context.public is not None)

    def peak_memory(self) -> int:
        """Largest resident size so far of this process or of one worker."""
        return max(peak_memory(), self.workers_peak)

    def server_round(self, round_number: int, lr: float, server_lr: float, aggregated: bytes | None) -> None:
        """Set the round, the clients' and the server's learning rates and the model before it, for the server's operators."""
        self.round_number, self.aggregated = round_number, aggregated
        self.lr, self.server_lr = lr, server_lr

    def before(self) -> State:
        """See :class:`fedqssl.federated.algorithms.ServerOperators`, as for the methods below."""
        if self.aggregated is None:
            raise ValueError("there is no aggregated model yet")
        return read_payload(self.aggregated, 32, self.context.task)

    def read(self, payloads: Mapping[str, bytes]) -> dict[str, State]:
        """The states of models as they came."""
        return {n: read_payload(payloads[n], self.context.bits[n], self.context.task) for n in sorted(payloads)}

    def dequantize(self, payloads: Mapping[str, bytes]) -> dict[str, tuple[State, float]]:
        """De-quantization, one job per client."""
        bits = self.context.bits
        jobs = {n: (bits[n], payloads[n], self.round_number, self.server_lr) for n in sorted(payloads)}
        return self._run("de-quantize", _dequantize, jobs)

    def requantize(self, state: State, epochs: int | None = None) -> dict[str, bytes]:
        """Re-quantization, one job per bitwidth."""
        count = self.context.config.server.requantize_epochs if epochs is None else epochs
        bits = sorted(set(self.context.bits.values()))
        made = self._run(
            "re-quantize", _requantize, {b: (b, state, self.round_number, self.server_lr, count) for b in bits}
        )
        return {name: made[b] for name, b in self.context.bits.items()}

    def train(self, state: State, where: Where, epochs: int) -> tuple[State, float]:
        """Full-precision training in this process, on the buffer or, at the clients' learning rate, on everything."""
        buffer = where == "buffer"
        images = self.context.buffer() if buffer else self.context.train.images[self.context.everyone()]
        lr = self.server_lr if buffer else self.lr
        ticked: Callable[[int], None] = lambda done: self.tick(f"training on {where}", done, epochs)  # noqa: E731
        return fine_tune(state, images, self.context.task, (where, self.round_number), epochs, lr, ticked)

    def settle(self, state: State) -> State:
        """Batch-norm statistics of the buffer."""
        return settle(state, self.context.buffer(), self.context.task)
