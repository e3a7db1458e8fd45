"""Files from the web: downloaded once, resumed after an interruption, checked, and unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedqssl.data.images import DataError
from fedqssl.data.pixels import line

DownloadProgress = Callable[[int, int | None], None]
"""Called with the bytes so far and, if the server says so, the total."""

ATTEMPTS = 4
TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 16


def cache_folder() -> Path:
    """``$FEDQSSL_CACHE``, or ``~/.cache/fedqssl``; it need not exist."""
    chosen = os.environ.get("FEDQSSL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedqssl"


def download(
    url: str, target: Path, md5: str, progress: DownloadProgress | None = None, sha256: str | None = None
) -> Path:
    """Download a file unless it exists with the right checksum; an interrupted download is resumed where it stopped.

    Partial data are kept in ``<target>.part``; the target appears only when it is complete and correct.

    Args:
        url: http or https.
        target: where the file goes; its folder is made.
        md5: published checksum, in hexadecimal.
        progress: called after every piece.
        sha256: another checksum, which also holds against somebody who changes the file on purpose.

    Raises:
        DataError: the server cannot be reached, or the file has another checksum.
    """
    if target.is_file() and not _wrong(target, md5, sha256):
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive_all(url, part, progress)
        wrong = _wrong(part, md5, sha256)
        if wrong:
            part.unlink()
            raise DataError(f"{url}: {wrong}; try again, or download it by hand into {target.parent}")
        part.replace(target)
    except OSError as error:  # the disk; errors of the network are handled above
        raise DataError(f"{target}: cannot be written ({line(error)}); free space or set FEDQSSL_CACHE") from error
    return target


def _receive_all(url: str, part: Path, progress: DownloadProgress | None) -> None:
    """Request the missing bytes until the file is complete; give up after several interruptions in a row without a new byte."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive(url, part, before, progress)
            return
        except (_CutError, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500:
                raise DataError(f"{url}: {line(error)}; download it by hand and pass its folder as data_dir") from error
            gained = (part.stat().st_size if part.exists() else 0) > before
            failures = 1 if gained else failures + 1
            if failures >= ATTEMPTS:
                raise DataError(
                    f"{url}: cannot be fetched ({line(error)}); check the network and run again to resume, or pass data_dir"
                ) from error


class _CutError(Exception):
    """The connection ended before the file did."""


def _receive(url: str, part: Path, have: int, progress: DownloadProgress | None) -> None:
    """Request the bytes from ``have`` on and append them to the part; without range support the server starts over."""
    headers = {"User-Agent": "fedqssl"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        if _range_total(error.headers) == have:  # nothing is missing
            return
        part.unlink()  # the part is longer than the file: it is of something else
        raise _CutError("the part on disk does not belong to this file") from error
    with response:
        start = _range_start(response.headers) if response.status == 206 else 0
        if start != have and start != 0:
            raise _CutError(f"asked for bytes from {have}, got them from {start}")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        done = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    if total is not None and done < total:
        raise _CutError(f"interrupted after {done} of {total} bytes")


def _range_start(headers: Any) -> int:
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range") or "")
    return int(found[1]) if found else 0


def _range_total(headers: Any) -> int | None:
    found = re.match(r"bytes \*/(\d+)", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _wrong(path: Path, md5: str, sha256: str | None) -> str:
    """Which checksum is not the expected one; empty if all are.

    The published checksums are MD5, which are good against accidental damage only.
    """
    digests = [hashlib.md5(usedforsecurity=False), *([] if sha256 is None else [hashlib.sha256()])]
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            for digest in digests:
                digest.update(chunk)
    for digest, expected in zip(digests, (md5, sha256), strict=False):
        if digest.hexdigest() != expected:
            return f"{digest.name.upper()} checksum is {digest.hexdigest()}, not {expected}"
    return ""


def unpack(archive: Path, member: str, into: Path) -> Path:
    """Unpack the top folder ``member`` of a tar file to ``into/member``; it appears completely or not at all.

    Entries that point outside, devices and links to other places are refused (tar filter "data").
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"this Python cannot unpack safely; update it, or unpack {archive} by hand and pass data_dir")
    final = into / member
    into.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".unpack-", dir=into))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        if not (scratch / member).is_dir():
            raise DataError(f"{archive}: has no folder {member}; download it again")
        if not final.exists():
            (scratch / member).replace(final)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({line(error)}); fetch it again") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


__all__ = ["DownloadProgress", "cache_folder", "download", "unpack"]
