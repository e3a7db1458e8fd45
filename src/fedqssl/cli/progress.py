"""Progress on a terminal: permanent lines, and one live line with a bar for the jobs of the round."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from fedqssl.runs.progress import Progress


class TerminalProgress(Progress):
    """Use as a context manager; if the output is not a terminal, only plain lines are shown."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.job = self.bars.add_task("starting", total=None)
        self.prefix = ""

    def round(self, number: int, rounds: int) -> None:
        """A new live line."""
        self.prefix = f"round {number}/{rounds} "
        self.bars.reset(self.job, description=self.prefix, total=None)

    def tick(self, what: str, done: int, total: int) -> None:
        """Move the bar."""
        self.bars.update(self.job, description=self.prefix + what, completed=done, total=total)

    def __enter__(self) -> TerminalProgress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
