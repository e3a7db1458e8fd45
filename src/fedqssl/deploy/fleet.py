"""The fleet folder: where its files are, and which names are allowed.

On the server's machine it is complete. A client's machine has ``fleet.toml``, ``ca.crt`` and ``clients/<name>`` of it.
"""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedqssl.files import is_locked, locked, read_json_or_none, write_atomically
from fedqssl.units import bytes_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

INTERRUPTED = "interrupted"
GOING, OVER = ("starting", "waiting", "running"), ("finished", "failed", "stopped", INTERRUPTED)
"""States of a run in ``status.json``: stopped by ``deploy stop``, interrupted because the server or its machine stopped."""
SPACE = 32 << 20
"""Bytes that a server needs to begin: its state, logs, and the first models."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class FleetError(ValueError):
    """A fleet folder or one of its processes cannot be used as asked; the message says what to do."""


@dataclass(frozen=True)
class ServerData:
    """The server's images: the buffer and, optionally, labeled images for the global accuracy."""

    buffer: str
    labeled: str | None = None
    on_bad: str = "error"


def check_name(name: str) -> str:
    """The name, if it is a valid client name: it also names a folder."""
    if not NAME.fullmatch(name):
        raise FleetError(
            f"a client's name may contain letters, digits, - and _ (at most 63 characters, like car-17), not {name!r}"
        )
    return name


@dataclass(frozen=True)
class Fleet:
    """A fleet that ``fedqssl deploy init`` made."""

    path: Path
    address: str

    @classmethod
    def open(cls, path: Path) -> Fleet:
        """Read ``fleet.toml``."""
        values = read_toml(
            path / "fleet.toml", f"{path} is not a fleet folder; make one with fedqssl deploy init {path}"
        )
        address = values.get("address")
        if not isinstance(address, str) or not re.fullmatch(r"\S+:\d{1,5}", address):
            raise FleetError(f'{path / "fleet.toml"} needs a line like address = "192.168.1.5:9443"')
        if not (path / "ca.crt").is_file():
            raise FleetError(f"{path / 'ca.crt'} is missing; copy it from the server's fleet folder")
        return cls(path.absolute(), address)

    @property
    def authority(self) -> Path:
        """The certificate by which clients recognise the server."""
        return self.path / "ca.crt"

    @property
    def server(self) -> Path:
        """The server's own folder; a client's machine does not have it."""
        return self.path / "server"

    @property
    def runs(self) -> Path:
        """Folders of runs, each with the settings it was started with beside it."""
        return self.path / "runs"

    def client(self, name: str) -> Path:
        """A client's own folder."""
        return self.path / "clients" / check_name(name)

    def public_keys(self) -> dict[str, Path]:
        """Public keys by client name: the clients that may connect."""
        found = sorted((self.path / "clients").glob("*/key.pub"))
        return {file.parent.name: file for file in found if NAME.fullmatch(file.parent.name)}

    def serving(self) -> bool:
        """Whether this fleet's server is running."""
        return is_locked(self.server / ".lock")

    def exchanged(self, name: str) -> dict[str, Any]:
        """The values of a JSON file that the server's processes exchange, like ``status.json``; empty if it is missing."""
        values = read_json_or_none(self.server / name)
        return values if isinstance(values, dict) else {}


def full(folder: Path, write: bool = True) -> str:
    """What is wrong with the disk that a folder is on, tried by writing a little; empty if there is space."""
    free = shutil.disk_usage(folder).free
    if free < SPACE:
        return f"the disk of {folder} is full ({bytes_text(free)} are left)"
    if not write:
        return ""
    try:
        write_atomically(folder / ".space", b"x" * 4096)
        (folder / ".space").unlink()
    except OSError as error:  # a quota, or a disk that has become read-only
        return f"{folder} cannot be written to ({error.strerror or error})"
    return ""


def only_one(folder: Path, what: str) -> AbstractContextManager[None]:
    """Keep a second process from running at the same time."""
    return locked(folder / ".lock", FleetError(f"{what} is already running; stop it first"))


def read_toml(path: Path, missing: str) -> dict[str, Any]:
    """A TOML file, or an error that says what to do."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FleetError(missing) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FleetError(f"{path} is not a TOML file: {error}") from None


def stop_like_ctrl_c(number: int, frame: object) -> NoReturn:
    """A handler for SIGTERM: services shut down cleanly, as they do on Ctrl-C."""
    raise KeyboardInterrupt
