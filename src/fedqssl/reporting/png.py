"""Small pictures inside a page: PNG by hand, because pillow is an extra and a thumbnail needs twenty lines."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 48
"""Largest side of a picture in pixels."""
START = "data:image/png;base64,"
MOST_LETTERS = len(START) + 4 * -(-(SIDE * (3 * SIDE + 1) + 160) // 3)
"""Letters of a picture at most: even noise, which cannot be compressed, needs no more."""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(image: Tensor) -> bytes:
    """A uint8 image (C, H, W), grey or RGB, as a PNG file; rows as they are or as differences, whichever is smaller."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels)
    shifted = F.pad(rows, (channels, 0))[:, : rows.shape[1]]
    tried = []
    for kind, values in ((0, rows), (1, rows - shifted)):  # uint8 wraps around, as PNG's filter "Sub" wants
        marked = torch.cat([torch.full((height, 1), kind, dtype=torch.uint8), values], 1)
        tried.append(zlib.compress(marked.contiguous().numpy().tobytes(), 9))
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    data = min(tried, key=len)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def thumbnail(image: Tensor, side: int = SIDE) -> Tensor:
    """A uint8 image (C, H, W) no larger than ``side``: pixels are averaged, never enlarged."""
    height, width = image.shape[1:]
    share = side / max(height, width)
    if share >= 1:
        return image
    size = max(1, round(height * share)), max(1, round(width * share))
    return F.interpolate(image[None].float(), size=size, mode="area")[0].round().to(torch.uint8)


def data_uri(image: Tensor) -> str:
    """A uint8 image (C, H, W) as the address of a small picture."""
    return START + base64.b64encode(png(thumbnail(image))).decode()


__all__ = ["MOST_LETTERS", "SIDE", "START", "data_uri", "png", "thumbnail"]
