"""``fedqssl reproduce``: the paper's tables and figures, each with one command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedqssl.cli.run import INTERRUPTED

if TYPE_CHECKING:
    from fedqssl.runs.text_table import Grid
    from fedqssl.studies.paper.reproduce import Request


class What(str, Enum):
    """What can be reproduced."""

    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    table_low = "table_low"
    figure1 = "figure1"
    figure2 = "figure2"
    figure3 = "figure3"
    figure4 = "figure4"
    figure5 = "figure5"
    figure_server = "figure_server"
    figure_temperature = "figure_temperature"
    all = "all"


class Size(str, Enum):
    """How large."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


Names = Annotated[list[What], typer.Argument(help="Tables and figures of the paper; names with a _ are our own.")]
ScaleName = Annotated[
    Size,
    typer.Option(
        help="smoke: seconds a run, embedded images; small: minutes a run (preset cifar10-small); paper: the paper's own."
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help="Where the images are, like parquet:PATH; or cifar10=SPEC and cifar100=SPEC where both are needed.",
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of every cell, with seeds 0, 1, ...")]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Cells at the same time, one thread each; by default one after the other, with two workers."
    ),
]
Only = Annotated[
    str | None, typer.Option(metavar="ALGORITHM,...", help="Run these rows only; tables show all that is done.")
]
Out = Annotated[Path | None, typer.Option(help="Folder; by default runs/reproduce-<scale>.")]
Collect = Annotated[
    bool,
    typer.Option(
        "--collect", help="Run nothing: write tables and figures from what is done so far, also while it is run."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cells and how far each is, and stop.")]


def reproduce(
    names: Names,
    scale: ScaleName = Size.small,
    data: Data = None,
    seeds: Seeds = 1,
    jobs: Jobs = None,
    only: Only = None,
    out: Out = None,
    collect: Collect = False,
    dry_run: DryRun = False,
) -> None:
    """Run and write the paper's tables and figures; what is done is skipped, what was stopped goes on.

    For example: fedqssl reproduce table1 --scale small --data parquet:data/cifar10 --jobs 2 --out runs/small
    """
    folder = out if out is not None else Path("runs") / f"reproduce-{scale.value}"
    console = Console()
    try:
        from fedqssl.cli.progress import TerminalProgress
        from fedqssl.studies.paper import reproduce as experiments

        algorithms = [name.strip() for name in (only or "").split(",") if name.strip()]
        wanted = experiments.request([n.value for n in names], scale.value, data or (), seeds, algorithms, folder)
        if dry_run:
            _list(wanted, folder)
            return
        with TerminalProgress(console) as progress:
            done = (
                experiments.collect(wanted, folder, progress)
                if collect
                else experiments.reproduce(wanted, folder, jobs, progress)
            )
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; what is done is kept; go on with: {_command(names, scale, data, seeds, jobs, only, folder)}"
        )
        raise typer.Exit(INTERRUPTED) from None
    show(console, done.grids)
    if done.error is not None:
        raise done.error
    typer.echo(f"tables and figures are in {folder}, their runs in {folder / 'cells'}")


def show(console: Console, grids: Sequence[Grid]) -> None:
    """Tables with their notes; a note that several share is printed once."""
    said: set[str] = set()
    for grid in grids:
        console.print(grid.rich())
        for note in grid.notes:
            if note not in said:
                console.print(note, markup=False, highlight=False, style="dim")
        said |= set(grid.notes)
        console.print()


def _list(wanted: Request, folder: Path) -> None:
    """The cells and their states."""
    from fedqssl.runs.cells import state_of

    cells = list(dict.fromkeys(cell for experiment in wanted.experiments for cell in wanted.cells(experiment)))
    for cell in cells:
        typer.echo(f"{state_of(cell, folder).value:6}{cell.name}")
    typer.echo(f"{len(cells)} cells")


def _command(
    names: list[What],
    scale: Size,
    data: list[str] | None,
    seeds: int,
    jobs: int | None,
    only: str | None,
    folder: Path,
) -> str:
    """The same command again."""
    words = ["fedqssl", "reproduce", *(n.value for n in names), "--scale", scale.value]
    words += [word for spec in data or () for word in ("--data", spec)]
    words += ["--seeds", str(seeds)] if seeds != 1 else []
    words += ["--jobs", str(jobs)] if jobs is not None else []
    words += ["--only", only] if only else []
    return shlex.join([*words, "--out", str(folder)])
