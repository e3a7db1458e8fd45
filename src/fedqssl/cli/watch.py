"""``fedqssl watch``: the report of a run that is still going, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import TrustRun

Source = Annotated[Path, typer.Argument(metavar="RUN_OR_DIR", help="Folder of a run, or a folder with runs in it.")]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on, on this machine only; 0 takes a free one.")
]


def watch(source: Source, port: Port = 8001, trust: TrustRun = False) -> None:
    """Show the report of a run while it goes on, on a page that renews itself; reads only, for this machine alone.

    For example: fedqssl watch runs/demo, then open http://127.0.0.1:8001
    """
    import torch

    from fedqssl.reporting.data import runs_to_report
    from fedqssl.reporting.live import LivePage, server

    torch.set_num_threads(1)  # training needs the cores
    runs_to_report(source)  # an error now rather than on the page
    try:
        found = server(LivePage(source, trust), port)
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror or error}); choose another --port") from error
    with found:
        typer.echo(f"watching {source} on http://127.0.0.1:{found.server_address[1]}; stop with Ctrl-C")
        try:
            found.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped; the run itself goes on")
