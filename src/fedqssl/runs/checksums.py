"""``SHA256SUMS`` of a finished run: changes after its end are noticed, and ``sha256sum -c SHA256SUMS`` finds them, too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedqssl.files import write_atomically

NAME = "SHA256SUMS"


def write_sums(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the digests of these files, in the format of ``sha256sum``; paths are relative to the folder."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(contents.items())]
    write_atomically(folder / NAME, "".join(lines).encode())


def check_sum(folder: Path, name: str, data: bytes) -> None:
    """Raise a ValueError if a file is no longer what it was when the run ended; runs of older versions have no list."""
    path = folder / NAME
    if not path.is_file():
        return
    lines = (line.partition("  ") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    noted = next((digest for digest, _, listed in lines if listed == name), None)
    if noted is not None and noted != hashlib.sha256(data).hexdigest():
        raise ValueError(
            f"{folder / name} was modified after the run ended; restore it, or delete {path} if you changed it on purpose"
        )


__all__ = ["NAME", "check_sum", "write_sums"]
