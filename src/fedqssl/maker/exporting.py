"""Write a client's model as a file for its device, with a model card beside it."""

from __future__ import annotations

from pathlib import Path

import torch

from fedqssl.device.model import from_bytes
from fedqssl.files import write_atomically
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes
from fedqssl.maker.probing import ProbeSettings

FORMATS = {"fedqssl": "fqssl", "onnx": "onnx"}
"""Formats, with the endings of their files."""


def made_for_device(run: FinishedRun, client: str, data: str | None = None, labels: str = "all") -> bytes:
    """The bytes of a client's device file; in the run's number of threads, so that the codes are the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.config.threads)
    try:
        return device_bytes(run, run.client(client), ProbeSettings(data, labels))
    finally:
        torch.set_num_threads(before)


def export_client(
    run: FinishedRun,
    client: str,
    out: str | Path | None = None,
    kind: str = "fedqssl",
    data: str | None = None,
    labels: str = "all",
    overwrite: bool = False,
) -> Path:
    """Write a device file or an ONNX graph and its card; returns the file's path.

    Raises:
        ValueError: an unknown format, or a file that exists; one line that says what to do.
    """
    path = check_target(client, out, kind, overwrite)
    made, notes = made_for_device(run, client, data, labels), ""
    model = from_bytes(made, trust=True)  # our own bytes: what cannot be read back is not written
    if kind == "onnx":
        from fedqssl.device.onnx_export import to_onnx, versions

        made, notes = to_onnx(model), versions()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, made)
    write_atomically(card_of(path), (model.card() + notes).encode())
    return path


def check_target(client: str, out: str | Path | None, kind: str, overwrite: bool) -> Path:
    """Where to write; an error before the work rather than after it."""
    if kind not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, not {kind!r}")
    path = Path(out) if out is not None else Path(f"{client}.{FORMATS[kind]}")
    for file in (path, card_of(path)):
        if file.is_dir() or (file.exists() and not overwrite):
            raise ValueError(f"{file} exists; choose another --out, or replace it with --overwrite")
    if kind == "onnx":
        from fedqssl.device.onnx_export import check_onnx

        check_onnx()
    return path


def card_of(path: Path) -> Path:
    """The model card beside a file."""
    return path.with_name(path.name + ".md")


__all__ = ["FORMATS", "card_of", "check_target", "export_client", "made_for_device"]
