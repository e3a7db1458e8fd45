"""Worker processes that run jobs: functions of a shared object and of arguments sent with each job.

A job's result depends only on its arguments and the shared object, so any number of workers gives the same results for equal
``threads``. Workers start with the first jobs, end with their parent, however it ends, and never see Ctrl-C.
Python's own process pools import the user's script again in every worker; these do not (docs/decisions.md).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from fedqssl.engines.malloc import keep_freed_memory
from fedqssl.engines.shared_images import Shared, SharedImages
from fedqssl.engines.worker import peak_memory, receive, send

Tick = Callable[[str, int, int], None]
"""(kind of job, number done, total)."""
S = TypeVar("S")
Key = TypeVar("Key")
Result = TypeVar("Result")
_START = "import sys; sys.path[:] = {path!r}; from fedqssl.engines.worker import main; main({handle})"


def no_tick(what: str, done: int, total: int) -> None:
    """Show nothing."""


class _Worker:
    """One process and the connection to it."""

    def __init__(self, shared: Shared, threads: int, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.connection, theirs = Pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is the parent's alone
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path, handle=theirs.fileno())],
                stdin=subprocess.PIPE,  # what the worker watches: it closes when this process ends
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment} if environment else None,
            )
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        send(self.connection, (shared, threads))

    def end(self, at_once: bool) -> None:
        """End the process, letting it finish its job or not."""
        self.connection.close()
        if at_once:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Pool(Generic[S]):
    """Runs jobs on a shared object, in this process or in workers; use as a context manager, so that workers end with it.

    Args:
        shared: the first argument of every job; its images are mapped, not copied.
        workers: number of processes; 1 runs everything in this process.
        threads: torch threads of each.
        tick: called with the progress of the jobs.
        environments: variables of the workers' environments, in turn (one GPU each); by default they have this process's.
    """

    def __init__(
        self,
        shared: S,
        workers: int = 1,
        threads: int = 1,
        tick: Tick = no_tick,
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.shared, self.workers, self.threads, self.tick = shared, workers, threads, tick
        self.environments: Sequence[Mapping[str, str]] = environments or ({},)
        self._images: SharedImages | None = None
        self._opened: Shared | None = None
        self._running: list[_Worker] = []
        self._workers_peak = 0

    def __enter__(self) -> Pool[S]:
        torch.set_num_threads(self.threads)
        keep_freed_memory()
        if self.workers > 1:
            self._images = SharedImages(self.shared)
            self._opened = self._images.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_workers(at_once=error is not None)  # nobody wants what is left of the jobs
        if self._images is not None:
            self._images.__exit__(kind, error, trace)

    def run(self, what: str, function: Callable[..., Result], jobs: Mapping[Key, tuple[Any, ...]]) -> dict[Key, Result]:
        """``function(shared, *arguments)`` of every job, by key in the order of the jobs; long jobs should come first.

        Args:
            what: the kind of job, for the progress line.
            function: of a module that a worker can import.
            jobs: arguments by key.

        Raises:
            ChildProcessError: a worker died. Errors raised by a job are raised here, too.
        """
        self.tick(what, 0, len(jobs))
        done: dict[Key, Result] = {}
        for key, result in self.stream(function, jobs):
            done[key] = result
            self.tick(what, len(done), len(jobs))
        return {key: done[key] for key in jobs}

    def stream(
        self,
        function: Callable[..., Result],
        jobs: Mapping[Key, tuple[Any, ...]],
        died: Callable[[Key], Result] | None = None,
    ) -> Iterator[tuple[Key, Result]]:
        """Like :meth:`run`, but yields results as they arrive; ``died`` gives the result of a job whose worker died."""
        if self._opened is not None:
            yield from self._in_workers(function, jobs, died)
            return
        for key, arguments in jobs.items():
            yield key, function(self.shared, *arguments)

    def peak_memory(self) -> int:
        """Largest resident size so far of this process or of any worker."""
        return max(peak_memory(), self._workers_peak)

    def _end_workers(self, at_once: bool) -> None:
        for worker in self._running:
            worker.end(at_once)
        self._running = []

    def _in_workers(
        self,
        function: Callable[..., Result],
        jobs: Mapping[Key, tuple[Any, ...]],
        died: Callable[[Key], Result] | None,
    ) -> Iterator[tuple[Key, Result]]:
        """A worker gets its next job after sending its last result; a dead worker is replaced."""
        left = deque(jobs.items())
        busy: dict[Connection, tuple[_Worker, Key]] = {}
        try:
            while left or busy:
                idle = [worker for worker in self._running if worker.connection not in busy]
                while left and len(busy) < self.workers:
                    worker = idle.pop() if idle else self._hire()
                    key, arguments = left.popleft()
                    send(worker.connection, (function, arguments))
                    busy[worker.connection] = worker, key
                ready = wait(list(busy))[0]
                assert isinstance(ready, Connection)
                result = self._collect(*busy[ready], died)
                del busy[ready]
                yield result
        finally:
            if busy:  # their results would be taken for those of the next jobs
                self._end_workers(at_once=True)

    def _hire(self) -> _Worker:
        assert self._opened is not None
        used = [worker.environment for worker in self._running]
        least = min(self.environments, key=used.count)  # also where a worker that died is replaced
        self._running.append(_Worker(self._opened, self.threads, least))
        return self._running[-1]

    def _collect(self, worker: _Worker, key: Key, died: Callable[[Key], Result] | None) -> tuple[Key, Result]:
        """The result of a worker's job."""
        try:
            fine, result, peak = receive(worker.connection)
        except (EOFError, ConnectionError) as error:
            self._running.remove(worker)
            worker.end(at_once=True)
            if died is not None:
                return key, died(key)
            raise ChildProcessError(
                "a worker process died, possibly out of memory (workers = 1 in config.toml needs less)"
            ) from error
        self._workers_peak = max(self._workers_peak, peak)
        if not fine:
            raised, text = result
            raise raised from RuntimeError(f"in a worker process:\n{text}")
        return key, result


__all__ = ["Pool", "Tick", "no_tick"]
