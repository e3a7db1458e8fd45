"""The header of our own binary files: mark, version, length and checksum of what follows, so that damage is detected."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_HEAD = struct.Struct("<6sHQ32s")
SIZE = _HEAD.size
CONTAINER_MARK = b"FQSSL\0"
"""First bytes of a low-bit model (:mod:`fedqssl.lowbit.container`)."""


class Made(bytes):
    """Bytes that :meth:`Header.wrap` returned in this process or in a worker of it: their checksum is right.

    What comes from a file or from another machine is plain bytes, and so is every part of these.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Header:
    """The header of one kind of file: mark (6 bytes), version (uint16), length of the body (uint64), its SHA-256; little-endian.

    Args:
        mark: the file's first six bytes.
        version: the only version that is read.
        error: raised for any other bytes.
        unmarked: the message if the mark is missing.
        older: appended to the message about an older version: what to do.
        damaged: appended to the message about truncated or changed bytes: what to do.
    """

    mark: bytes
    version: int
    error: type[ValueError]
    unmarked: str
    older: str = ""
    damaged: str = ""

    def wrap(self, body: bytes) -> bytes:
        """Header and body."""
        return Made(_HEAD.pack(self.mark, self.version, len(body), hashlib.sha256(body).digest()) + body)

    def unwrap(self, data: bytes, max_bytes: int, checked: bool = False) -> bytes:
        """The body, if mark, version, length and checksum are right; ``checked``: the checksum has been verified before."""
        if len(data) > max_bytes:
            raise self.error(f"{len(data):,} bytes are more than the {max_bytes:,} allowed")
        if len(data) < SIZE or data[:6] != self.mark:
            raise self.error(self.unmarked)
        _, version, length, digest = _HEAD.unpack_from(data)
        if version > self.version:
            newest = f"{self.version}, the newest known here"
            raise self.error(f"format version {version} is newer than {newest}; update fedqssl")
        if version != self.version:
            raise self.error(f"format version {version}, but this fedqssl reads version {self.version}{self.older}")
        body = data[SIZE:]
        if length != len(body):
            raise self.error(f"truncated or padded: {len(body)} bytes follow the header, not {length}{self.damaged}")
        if not checked and not isinstance(data, Made) and hashlib.sha256(body).digest() != digest:
            raise self.error(f"checksum mismatch: the bytes were changed{self.damaged}")
        return body


__all__ = ["CONTAINER_MARK", "SIZE", "Header", "Made"]
