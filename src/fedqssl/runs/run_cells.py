"""Run cells: skip finished ones, resume interrupted ones, start the rest; if a cell fails, the others still run."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fedqssl.data.registry import kept_datasets, load_dataset
from fedqssl.engines.pool import Pool
from fedqssl.runs import Progress, RunResult, resume, start
from fedqssl.runs.cells import Cell, CellError, State, read_result, state_of
from fedqssl.runs.progress import seconds

DIED = "its process died, possibly out of memory; try fewer --jobs"


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: an empty ``error`` is success; ``trace`` is the traceback."""

    cell: Cell
    error: str = ""
    trace: str = ""


class Quiet(Progress):
    """Shows the progress of a round but not its lines, which are in the run's ``log.txt``; warnings are shown."""

    def __init__(self, inner: Progress, name: str) -> None:
        super().__init__(inner.say)
        self.inner, self.name = inner, name

    def tick(self, what: str, done: int, total: int) -> None:
        """Show progress with the cell's name."""
        self.inner.tick(f"{what} ({self.name})", done, total)

    def round(self, number: int, rounds: int) -> None:
        """Show the line unchanged."""
        self.inner.round(number, rounds)

    def say(self, line: str) -> None:
        """Pass on warnings only."""
        if line.startswith("warning:"):
            super().say(f"{self.name}: {line}")


def run_cell(cell: Cell, out: Path, progress: Progress) -> RunResult:
    """Start or resume one cell and run it to its end."""
    folder = cell.folder(out)
    state = state_of(cell, out)
    if state is State.DONE:
        return read_result(folder)
    quiet = Quiet(progress, cell.name)
    if state is State.BEGUN:
        result = resume(folder, progress=quiet, images_of=cell.config)
    else:
        result = start(cell.config, folder, progress=quiet, as_written=True)
    cell.ended(out)
    return result


def attempt(cell: Cell, out: Path, progress: Progress) -> CellOutcome:
    """As :func:`run_cell`; errors become part of the outcome."""
    try:
        run_cell(cell, out, progress)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return CellOutcome(cell, text, traceback.format_exc())
    return CellOutcome(cell)


class _Count:
    """Lines of progress: cell k of n, how long it took, and the estimated time left."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress = total, progress
        self.ended, self.began = 0, time.monotonic()

    def end(self, outcome: CellOutcome, out: Path) -> None:
        self.ended += 1
        self.progress.tick("cells", self.ended, self.total)
        took = time.monotonic() - self.began
        left = took / self.ended * (self.total - self.ended)
        tail = f"; about {seconds(left)} left" if self.ended < self.total else f"; {seconds(took)} in all"
        self.progress.say(f"cell {self.ended} of {self.total}: {outcome.cell.name}: {_figures(outcome, out)}{tail}")


def _figures(outcome: CellOutcome, out: Path) -> str:
    if outcome.error:
        return f"failed: {outcome.error}"
    result = read_result(outcome.cell.folder(out))
    known = {"global": result.global_accuracy, "local": result.local_accuracy}
    return ", ".join(f"{name} {100 * value:.1f}%" for name, value in known.items() if value is not None) or "done"


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    jobs: int | None,
    progress: Progress,
    ended: Callable[[Cell], None] = lambda cell: None,
) -> CellError | None:
    """Run all unfinished cells; equal cells are run once.

    Args:
        cells: the cells to run.
        out: the folder; runs are stored in its ``cells`` subfolder.
        jobs: None runs one cell after another with its own ``workers``; a number runs that many in parallel, each in
            one process with one thread, which gives the same results.
        progress: receives progress of cells, and of rounds when cells run one after another.
        ended: called for every successful cell, starting with those finished earlier.

    Returns:
        None, or the error to end with, if cells failed.

    Raises:
        CellError, DataError: before anything is run, if an existing cell has other settings or data cannot be read.
    """
    wanted = list(dict.fromkeys(cells))
    done = [cell for cell in wanted if state_of(cell, out) is State.DONE]
    left = [cell for cell in wanted if cell not in done]
    progress.say(f"{len(left)} cells to run" + (f", {len(done)} done already" if done else ""))
    for cell in done:
        ended(cell)
    if not left:
        return None
    by_name = {cell.name: cell for cell in left}
    if jobs is not None:
        left = [replace(c, config=c.config.model_copy(update={"workers": 1, "threads": 1})) for c in left]
    with kept_datasets():
        for spec, place in {(c.config.data, c.config.data_dir) for c in left}:
            load_dataset(spec, "test", place)  # data that are missing are one error here, not one in every cell
        count, failed = _Count(len(left), progress), []
        for outcome in _outcomes(left, out, jobs, progress):
            count.end(outcome, out)
            if outcome.error:
                failed.append(outcome)
            else:
                (out / "failed" / f"{outcome.cell.name}.txt").unlink(missing_ok=True)
                ended(by_name[outcome.cell.name])
    return _error(failed, len(wanted), out)


def _outcomes(cells: Sequence[Cell], out: Path, jobs: int | None, progress: Progress) -> Iterator[CellOutcome]:
    if jobs is None or jobs == 1:
        return (attempt(cell, out, progress) for cell in cells)
    return in_processes(cells, out, jobs)


def in_processes(cells: Sequence[Cell], out: Path, jobs: int) -> Iterator[CellOutcome]:
    """The outcomes of all cells, as they end, in so many processes; if a process dies, only its own cell fails."""
    by_name = {cell.name: cell for cell in cells}
    work = {name: (cell,) for name, cell in by_name.items()}
    with Pool(out, jobs) as pool:
        for _, outcome in pool.stream(_in_worker, work, lambda name: CellOutcome(by_name[name], DIED)):
            yield outcome


@functools.cache
def _keep_datasets() -> None:
    """Applies until this process ends."""
    ExitStack().enter_context(kept_datasets())


def _in_worker(out: Path, cell: Cell) -> CellOutcome:
    _keep_datasets()
    return attempt(cell, out, Progress(lambda line: None))


def _error(failed: Sequence[CellOutcome], total: int, out: Path) -> CellError | None:
    """One line about all failed cells, grouped by reason; tracebacks go to ``failed/``."""
    if not failed:
        return None
    by_reason: dict[str, list[str]] = {}
    (out / "failed").mkdir(exist_ok=True)
    for outcome in failed:
        by_reason.setdefault(outcome.error, []).append(outcome.cell.name)
        (out / "failed" / f"{outcome.cell.name}.txt").write_text(outcome.trace or outcome.error + "\n")
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return CellError(
        f"{len(failed)} of {total} cells failed ({reasons}); the others are kept; tracebacks are in {out / 'failed'}; "
        "run the same command again to retry"
    )


__all__ = ["CellOutcome", "attempt", "run_cell", "run_cells"]
