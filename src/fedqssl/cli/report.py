"""``fedqssl report``: a run, or a folder of runs, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import TrustRun

Source = Annotated[Path, typer.Argument(metavar="RUN_OR_DIR", help="Folder of a run, or a folder with runs in it.")]
Out = Annotated[Path | None, typer.Option(help="File to write; by default report.html in that folder.")]
Each = Annotated[bool, typer.Option("--each", help="Also write a report into every run's folder.")]

One = Annotated[
    str | None, typer.Option("--client", help="Print what is known about one client of a run; writes nothing.")
]


def report(source: Source, out: Out = None, each: Each = False, client: One = None, trust: TrustRun = False) -> None:
    """Write one self-contained report.html; works during a run, too, and needs no network.

    For example: fedqssl report runs/demo, or for all runs of a folder: fedqssl report runs --each
    """
    import torch

    if client is not None:
        from rich.console import Console

        from fedqssl.reporting.one_client import client_table

        Console().print(client_table(source, client, trust))
        return

    from fedqssl.reporting import write_report
    from fedqssl.reporting.data import runs_to_report

    torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
    if each:
        for run in runs_to_report(source):
            if run != source:
                typer.echo(f"wrote {write_report(run, trust=trust)}")
    typer.echo(f"wrote {write_report(source, out, trust=trust)}")
