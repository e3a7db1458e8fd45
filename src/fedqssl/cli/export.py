"""``fedqssl export``: a client's model as one file for its device, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import TrustRun
from fedqssl.cli.probe import Data, Labels, Run

Client = Annotated[str, typer.Option(help="Whose model.")]
Format = Annotated[
    str, typer.Option("--format", help="fedqssl: packed, for fedqssl predict and serve; onnx: for onnxruntime.")
]
Out = Annotated[Path | None, typer.Option(help="File to write; by default <client>.fqssl or <client>.onnx.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]


def export(
    source: Run,
    client: Client,
    kind: Format = "fedqssl",
    out: Out = None,
    data: Data = None,
    labels: Labels = "all",
    overwrite: Overwrite = False,
    trust: TrustRun = False,
) -> None:
    """Write a client's model with its classifier, and a model card beside it.

    For example: fedqssl export runs/demo --client client-03 --format onnx --out phone.onnx
    """
    from fedqssl.maker.exporting import card_of, check_target, export_client

    check_target(client, out, kind, overwrite)
    from fedqssl.maker.finished_run import FinishedRun

    path = export_client(FinishedRun.open(source, trust=trust), client, out, kind, data, labels, overwrite)
    typer.echo(f"wrote {path} ({path.stat().st_size:,} bytes) and {card_of(path)}")
