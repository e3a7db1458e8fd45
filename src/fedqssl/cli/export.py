"""``fedqssl export``: a client's model as one file for its device or as C, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import TrustRun
from fedqssl.cli.probe import Data, Labels

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_FILE", help="Folder of a finished run; or a device file, to be written as C or ONNX."
    ),
]
Client = Annotated[str | None, typer.Option(help="Whose model of the run.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="fedqssl: packed, for fedqssl predict and serve; onnx: for onnxruntime; c: a folder of C for microcontrollers.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="What to write; by default <client>.fqssl, <client>.onnx or the folder <client>-c.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
MaxRam = Annotated[str | None, typer.Option(help="Most RAM that the C may use, like 64kB; more is an error.")]


def export(
    source: Source,
    client: Client = None,
    kind: Format = "fedqssl",
    out: Out = None,
    data: Data = None,
    labels: Labels = "all",
    max_ram: MaxRam = None,
    overwrite: Overwrite = False,
    trust: TrustRun = False,
) -> None:
    """Write a client's model with its classifier, and a model card.

    For example: fedqssl export runs/demo --client client-03 --format onnx --out phone.onnx, or
    fedqssl export phone.fqssl --format c --out firmware/model
    """
    from fedqssl.cost.devices import quantity
    from fedqssl.maker.exporting import check_target, export_client, export_file

    ram = None if max_ram is None else int(quantity("memory", max_ram, "--max-ram"))
    if source.is_file():
        if client is not None or data is not None or labels != "all":
            raise ValueError(f"{source} is a device file: leave out --client, --data and --labels, which are for runs")
        made = export_file(source, out, kind, overwrite, ram, trust)
    else:
        if client is None:
            raise ValueError("choose a client of the run with --client NAME; fedqssl report shows the names")
        check_target(client, out, kind, overwrite, ram)
        from fedqssl.maker.finished_run import FinishedRun

        run = FinishedRun.open(source, trust=trust)
        made = export_client(run, client, out, kind, data, labels, overwrite, ram)
    if made.ram_bytes is None:
        typer.echo(f"wrote {made.path} ({made.nbytes:,} bytes) and {made.card}")
    else:
        sizes = f"{made.nbytes:,} bytes of constants, {made.ram_bytes:,} bytes of RAM"
        typer.echo(f"wrote the folder {made.path} ({sizes}); its README.md is the model card")
