"""``fedqssl sweep``: a grid of settings, resumable, ending in a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedqssl.cli.arguments import resumable, source_name, split_words

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="PRESET_OR_TOML KEY=VALUE;VALUE",
        help="A preset or a TOML file, quickstart by default; settings, and grids of them: 'beta=0.1;0.5;5'.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of cells to run in parallel, one thread each; by default one after another, with their own workers.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder; by default runs/sweep-<preset>.")]


def sweep(words: Words, jobs: Jobs = None, out: Out = None) -> None:
    """Run every combination of several settings' values; finished runs are skipped, interrupted ones are resumed.

    For example: fedqssl sweep quickstart 'beta=0.1;0.5;5' 'seed=0;1;2' rounds=4 --jobs 2 --out runs/beta
    """
    console = Console()
    source, settings = split_words(words)
    folder = out if out is not None else Path("runs") / f"sweep-{source_name(source)}"
    with resumable("sweep", *words, jobs=jobs, out=folder):
        from fedqssl.cli.progress import TerminalProgress
        from fedqssl.runs.sweep import plan_sweep
        from fedqssl.runs.sweep import sweep as run_sweep

        grid = plan_sweep(source, settings)
        with TerminalProgress(console) as progress:
            table, error = run_sweep(grid, folder, jobs, progress)
    if table is not None:
        console.print(table.grid().rich())
    if error is not None:
        raise error
    typer.echo(f"the table is in {folder / 'sweep.md'}, its runs in {folder / 'cells'}")
