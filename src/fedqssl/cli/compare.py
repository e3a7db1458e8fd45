"""``fedqssl compare``: finished runs in one table."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


class Form(str, Enum):
    """How the table is written."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


ENDINGS = {".md": Form.markdown, ".csv": Form.csv, ".tex": Form.latex}

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders with runs inside.")]
Across = Annotated[
    str | None,
    typer.Option(metavar="KEY,...", help="Settings in which the runs may differ, besides algorithm, bits and seed."),
]
Format = Annotated[Form | None, typer.Option("--format", help="By default chosen by the ending of --out, or terminal.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table to this file.")]
FinishedOnly = Annotated[bool, typer.Option("--finished", help="Leave out unfinished runs.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the --out file if it exists.")]


def compare(
    runs: Runs,
    across: Across = None,
    form: Format = None,
    out: Out = None,
    finished: FinishedOnly = False,
    overwrite: Overwrite = False,
) -> None:
    """Compare finished runs: one row per configuration, mean and standard deviation over seeds.

    For example: fedqssl compare runs/a runs/b, or fedqssl compare runs --across beta --format latex --out table.tex
    """
    wanted = form or ENDINGS.get(out.suffix.lower() if out else "", Form.markdown if out else Form.terminal)
    if out is not None:
        _check_out(out, wanted, overwrite)
    from fedqssl.runs.compare import compare as compare_runs

    keys = [key.strip() for key in (across or "").split(",") if key.strip()]
    table = compare_runs(runs, keys, finished)
    if wanted is Form.terminal:
        Console().print(table.grid().rich())
    elif out is None:
        typer.echo(table.text(wanted.value), nl=False)
    if out is not None:
        from fedqssl.runs.folder import write_atomically

        try:
            write_atomically(out, table.text(wanted.value).encode())
        except OSError as error:
            raise ValueError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error
        typer.echo(f"wrote {out}")


def _check_out(out: Path, form: Form, overwrite: bool) -> None:
    """Check before the work rather than after it."""
    if form is Form.terminal:
        raise ValueError("--format terminal prints the table; for a file use markdown, csv or latex")
    if out.is_dir():
        raise ValueError(f"--out needs a file, but {out} is a folder")
    if not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; choose another --out, or replace it with --overwrite")
