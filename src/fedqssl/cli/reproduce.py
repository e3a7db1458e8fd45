"""``fedqssl reproduce``: the paper's tables and figures, each with one command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedqssl.cli.arguments import resumable

if TYPE_CHECKING:
    from fedqssl.runs.text_table import Grid
    from fedqssl.studies.paper.reproduce import ReproduceRequest


Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="table1 to table3 and figure1 to figure5 of the paper; our own table_plus, table_plus_low, table_low, "
        "figure_server and figure_temperature; or all. attacks: hostile clients against robust aggregation, not part of all.",
    ),
]
ScaleName = Annotated[
    str,
    typer.Option(
        metavar="smoke|small|medium|paper",
        help="smoke: seconds a run, embedded images; small and medium: minutes a run; paper: the paper's own.",
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
        min=1,
        help="Number of cells to run in parallel, one thread each; by default one after another, with two workers.",
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="ALGORITHM,...",
        help="Run only these rows (of attacks: aggregation.robust, and attacks); tables show every finished run.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder; by default runs/reproduce-<scale>.")]
Collect = Annotated[
    bool,
    typer.Option(
        "--collect",
        help="Run nothing: write tables and figures from the finished runs, even while others are running.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the cells and their states.")]


def reproduce(
    names: Names,
    scale: ScaleName = "small",
    data: Data = None,
    seeds: Seeds = 1,
    jobs: Jobs = None,
    only: Only = None,
    out: Out = None,
    collect: Collect = False,
    dry_run: DryRun = False,
) -> None:
    """Run and write the paper's tables and figures; finished runs are skipped, interrupted ones are resumed.

    For example: fedqssl reproduce table1 --scale small --data parquet:data/cifar10 --jobs 2 --out runs/small
    """
    folder = out if out is not None else Path("runs") / f"reproduce-{scale}"
    console = Console()
    again = {"data": data, "seeds": seeds if seeds != 1 else None, "jobs": jobs, "only": only or None, "out": folder}
    with resumable("reproduce", *names, scale=scale, **again):
        from fedqssl.cli.progress import TerminalProgress
        from fedqssl.studies.paper import reproduce as experiments

        algorithms = [name.strip() for name in (only or "").split(",") if name.strip()]
        wanted = experiments.request(names, scale, data or (), seeds, algorithms, folder)
        if dry_run:
            _list(wanted, folder)
            return
        with TerminalProgress(console) as progress:
            if collect:
                done = experiments.collect(wanted, folder, progress)
            else:
                done = experiments.reproduce(wanted, folder, jobs, progress)
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


def _list(wanted: ReproduceRequest, folder: Path) -> None:
    """The cells and their states."""
    from fedqssl.runs.cells import state_of

    cells = wanted.all_cells()
    for cell in cells:
        typer.echo(f"{state_of(cell, folder).value:6}{cell.name}")
    typer.echo(f"{len(cells)} cells")
