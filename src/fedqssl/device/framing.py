"""The frame of a device file: header, manifest and models as bytes. Nothing heavy is imported here.

Layout: a header (:mod:`fedqssl.header`) with the mark ``b"FQDEV\\0"``; then the length of the manifest (uint32), the manifest
(JSON), and the containers of the extractor and of the classifier, whose lengths the manifest names.
"""

from __future__ import annotations

import struct
from pathlib import Path

from fedqssl.header import CONTAINER_MARK, Header

MAX_BYTES = 1 << 30
MAX_MANIFEST = 1 << 22
_LENGTH = struct.Struct("<I")


class DeviceFileError(ValueError):
    """These bytes are not a device file that can be used; the message says why."""


HEADER = Header(
    b"FQDEV\0",
    1,
    DeviceFileError,
    "not a device file; make one with fedqssl export RUN --client NAME",
    older="; export the model again",
    damaged="; copy it again",
)


def read_file(path: Path) -> bytes:
    """The bytes of a device file of bearable size."""
    if not path.is_file():
        raise DeviceFileError("no such file; make one with fedqssl export RUN --client NAME --out FILE")
    if path.stat().st_size > MAX_BYTES:
        raise DeviceFileError(f"{path.stat().st_size:,} bytes are more than the {MAX_BYTES:,} allowed")
    return path.read_bytes()


def framed(manifest: bytes, models: bytes) -> bytes:
    """The bytes of a device file."""
    return HEADER.wrap(_LENGTH.pack(len(manifest)) + manifest + models)


def separated(data: bytes) -> tuple[bytes, bytes]:
    """The manifest and the models of a device file, whose header is checked.

    Raises:
        DeviceFileError: one line that says why these bytes cannot be used.
    """
    if data[:6] == CONTAINER_MARK:
        raise DeviceFileError("this is a run's model without a classifier; make a device file with fedqssl export")
    rest = HEADER.unwrap(data, MAX_BYTES)
    if len(rest) < _LENGTH.size:
        raise DeviceFileError("the manifest is missing; export the model again")
    (size,) = _LENGTH.unpack_from(rest)
    start = _LENGTH.size + size
    if size > MAX_MANIFEST or start > len(rest):
        raise DeviceFileError(f"a manifest of {size} bytes is impossible; export the model again")
    return rest[_LENGTH.size : start], rest[start:]


def parts(models: bytes, extractor: int, classifier: int) -> tuple[bytes, bytes]:
    """The two containers, by the lengths that the manifest names."""
    if extractor + classifier != len(models):
        announced = extractor + classifier
        raise DeviceFileError(f"the manifest announces {announced} bytes of models, but {len(models)} follow it")
    return models[:extractor], models[extractor:]


__all__ = ["HEADER", "MAX_BYTES", "DeviceFileError", "framed", "parts", "read_file", "separated"]
