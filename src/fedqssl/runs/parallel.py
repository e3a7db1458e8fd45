"""Several cells at the same time: processes that each run whole cells, one thread each.

A process that dies takes its cell with it and no other. All of them end with their parent, however that ends, and Ctrl-C is the
parent's alone; what they leave can be gone on with.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from fedqssl.data.registry import kept_datasets
from fedqssl.runs import Progress
from fedqssl.runs.cells import Cell
from fedqssl.runs.run_cells import Outcome, attempt
from fedqssl.watch_parent import end_with_parent

DIED = "its process died, perhaps for lack of memory; try fewer --jobs"


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection


def _serve(pipe: Connection, lifeline: Connection, out: Path) -> None:
    """A worker: cells in, outcomes out, until None comes in."""
    end_with_parent(lifeline)
    silent = Progress(lambda line: None)
    with kept_datasets():
        while (cell := pipe.recv()) is not None:
            pipe.send(attempt(cell, out, silent))


def _hire(out: Path, lifeline: Connection) -> _Worker:
    """A new process; it inherits a signal mask without SIGINT, so that Ctrl-C does not reach it."""
    spawn = multiprocessing.get_context("spawn")  # fork would copy a process with live OpenMP threads
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, lifeline, out))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process, ours)


def outcomes(cells: Sequence[Cell], out: Path, jobs: int) -> Iterator[Outcome]:
    """The outcomes of all cells, as they end."""
    queue = deque(cells)
    theirs, lifeline = multiprocessing.get_context("spawn").Pipe(duplex=False)
    busy: dict[Connection, tuple[_Worker, Cell]] = {}
    try:
        while queue and len(busy) < jobs:
            _give(_hire(out, theirs), queue.popleft(), busy)
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker, cell = busy.pop(pipe)
                try:
                    outcome = pipe.recv()
                except (EOFError, OSError):
                    outcome = Outcome(cell, DIED)
                    worker.process.join()
                if queue:
                    alive = worker if outcome.error != DIED else _hire(out, theirs)
                    _give(alive, queue.popleft(), busy)
                elif outcome.error != DIED:
                    pipe.send(None)
                    worker.process.join()
                yield outcome
    finally:
        lifeline.close()  # ends whoever is still at work
        theirs.close()
        for worker, _ in busy.values():
            worker.process.join()


def _give(worker: _Worker, cell: Cell, busy: dict[Connection, tuple[_Worker, Cell]]) -> None:
    worker.pipe.send(cell)
    busy[worker.pipe] = (worker, cell)


__all__ = ["outcomes"]
