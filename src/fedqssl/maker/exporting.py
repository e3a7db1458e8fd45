"""Write a client's model as a file for its device, or as a folder of C, with a model card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedqssl.device.c_export.folder import FILES as C_FILES
from fedqssl.device.c_export.folder import to_c
from fedqssl.device.model import DeviceModel, from_bytes, load
from fedqssl.files import write_atomically
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes
from fedqssl.maker.probing import ProbeSettings

FORMATS = {"fedqssl": ".fqssl", "onnx": ".onnx", "c": "-c"}
"""Formats, with the endings of their files; C is a folder."""


@dataclass(frozen=True)
class Target:
    """Where to write what.

    Args:
        path: a file, or the folder of C.
        kind: one of :data:`FORMATS`.
        max_ram: bytes of RAM that the C may use.
    """

    path: Path
    kind: str
    max_ram: int | None = None

    @property
    def card(self) -> Path:
        """The model card: beside a file, inside a folder."""
        return self.path / "README.md" if self.kind == "c" else self.path.with_name(self.path.name + ".md")


@dataclass(frozen=True)
class Exported:
    """What was written: the file or folder, its model card, its bytes (of C: the constants), and the RAM that the C uses."""

    path: Path
    card: Path
    nbytes: int
    ram_bytes: int | None = None


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
    max_ram: int | None = None,
) -> Exported:
    """Write a device file, an ONNX graph or a folder of C with its card.

    Raises:
        ValueError: an unknown format, a file that exists, or a model that the format cannot hold; what to do about it.
    """
    target = check_target(client, out, kind, overwrite, max_ram)
    made = made_for_device(run, client, data, labels)
    model = from_bytes(made, trust=True)  # our own bytes: what cannot be read back is not written
    return write_model(model, target, made)


def export_file(
    file: Path,
    out: str | Path | None = None,
    kind: str = "c",
    overwrite: bool = False,
    max_ram: int | None = None,
    trust: bool = False,
) -> Exported:
    """Write a device file in another format.

    Raises:
        ValueError: as :func:`export_client`.
    """
    if kind == "fedqssl":
        raise ValueError(f"{file} is a device file already; choose --format c or --format onnx")
    target = check_target(file.stem, out, kind, overwrite, max_ram)
    return write_model(load(file, trust=trust), target)


def write_model(model: DeviceModel, target: Target, device_file: bytes | None = None) -> Exported:
    """Write a model where it belongs; nothing is written if the format cannot hold it.

    Args:
        model: the model.
        target: from :func:`check_target`.
        device_file: its device file, if that is at hand.
    """
    if target.kind == "c":
        folder = to_c(model, target.max_ram)
        target.path.mkdir(parents=True, exist_ok=True)
        for name, text in folder.files.items():
            write_atomically(target.path / name, text.encode())
        return Exported(target.path, target.card, folder.table_bytes, folder.ram_bytes)
    made, notes = device_file or model.to_bytes(), ""
    if target.kind == "onnx":
        from fedqssl.device.onnx_export import to_onnx, versions

        made, notes = to_onnx(model), versions()
    target.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target.path, made)
    write_atomically(target.card, (model.card() + notes).encode())
    return Exported(target.path, target.card, len(made))


def check_target(name: str, out: str | Path | None, kind: str, overwrite: bool, max_ram: int | None = None) -> Target:
    """Where to write; an error before the work rather than after it."""
    if kind not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, not {kind!r}")
    if max_ram is not None and (kind != "c" or max_ram < 1):
        raise ValueError("--max-ram is a number of bytes, at least 1, for --format c")
    target = Target(Path(out) if out is not None else Path(name + FORMATS[kind]), kind, max_ram)
    path = target.path
    files = [path / file for file in C_FILES] if kind == "c" else [path, target.card]
    if kind == "c" and path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file, but --format c writes a folder; choose another --out")
    for file in files:
        if file.is_dir() or (file.exists() and not overwrite):
            raise ValueError(f"{file} exists; choose another --out, or replace it with --overwrite")
    if kind == "onnx":
        from fedqssl.device.onnx_export import check_onnx

        check_onnx()
    return target


__all__ = [
    "FORMATS",
    "Exported",
    "Target",
    "check_target",
    "export_client",
    "export_file",
    "made_for_device",
    "write_model",
]
