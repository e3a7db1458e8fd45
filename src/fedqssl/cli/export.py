"""``fedqssl export``: a client's model as one file for its device, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import TrustRun
from fedqssl.cli.probe import Data, Labels, Run

FORMATS = ("fedqssl", "onnx")

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
    if kind not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, not {kind!r}")
    out = out or Path(f"{client}.{'onnx' if kind == 'onnx' else 'fqssl'}")
    card = out.with_name(out.name + ".md")
    for path in (out, card):
        if path.is_dir() or (path.exists() and not overwrite):
            raise ValueError(f"{path} exists; choose another --out, or replace it with --overwrite")
    if kind == "onnx":
        from fedqssl.device.onnx_export import check_onnx

        check_onnx()
    import torch

    from fedqssl.maker.finished_run import FinishedRun
    from fedqssl.maker.personal import device_bytes
    from fedqssl.maker.probing import ProbeSettings

    run = FinishedRun.open(source, trust=trust)
    torch.set_num_threads(run.config.threads)  # as in the run, so that the codes are the same
    made = device_bytes(run, run.client(client), ProbeSettings(data, labels))
    _write(made, kind, out, card)


def _write(made: bytes, kind: str, out: Path, card: Path) -> None:
    from fedqssl.device.model import from_bytes
    from fedqssl.runs.folder import write_atomically

    model = from_bytes(made, trust=True)  # our own bytes: what cannot be read back is not written
    notes = ""
    if kind == "onnx":
        from fedqssl.device.onnx_export import to_onnx, versions

        made, notes = to_onnx(model), versions()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, made)
    write_atomically(card, (model.card() + notes).encode())
    typer.echo(f"wrote {out} ({len(made):,} bytes) and {card}")
