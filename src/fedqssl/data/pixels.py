"""Decodes a picture of any kind to RGB pixels: shared by the readers of folders and of parquet files."""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedqssl.data.errors import DataError, DataWarning

MAX_PIXELS = 64_000_000  # a larger picture is refused before it is decoded: it may be a decompression bomb

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "MPO")
"""Formats that are decoded, wherever a picture comes from; pillow knows more, some of which start other programs."""
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2"}
)
"""How the names of picture files end."""
_SLOW = {"JPEG2000": 24, "WEBP": 2}
"""How many times longer than others a format's pixels take to decode, with Python's lock held meanwhile."""
_BLOCK = 1 << 20
"""Pixels of a 16-bit or float picture that are converted at a time."""
_KINDS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"GIF8": "GIF"}
"""First bytes of common formats: pillow otherwise tries its readers in turn, which takes as long as decoding 32x32 pixels."""

OnBad = Literal["error", "skip"]


class MissingExtraError(DataError, ImportError):
    """An optional package is missing; the message says which, and how to install it."""


class CorruptImageError(DataError):
    """A picture that cannot be decoded; the message names it."""


def import_extra(module: str, package: str, purpose: str, extra: str = "data") -> Any:
    """Import an optional module, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{purpose} needs {package}: pip install 'fedqssl[{extra}]'") from error


def check_on_bad(on_bad: str) -> None:
    """Raise an error for anything but ``error`` and ``skip``."""
    if on_bad not in ("error", "skip"):
        raise DataError(f"on_bad must be 'error' or 'skip', not '{on_bad}'")


def decode(source: bytes | Path, where: str, size: int | None = None) -> npt.NDArray[np.uint8]:
    """Pixels (H, W, 3) of one picture, upright; cropped to its centre square and resized when ``size`` is given.

    Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparency becomes white; of an animation the first
    frame is used.

    Raises:
        CorruptImageError: the picture is damaged, of an unknown kind or larger than ``MAX_PIXELS``.
    """
    pillow = import_extra("PIL.Image", "pillow", "reading images")
    ops = import_extra("PIL.ImageOps", "pillow", "reading images")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pillow warns of bombs and odd metadata; what matters is checked below
            with _opened(pillow, source) as picture:
                width, height = picture.size
                if width * height > MAX_PIXELS:
                    raise CorruptImageError(
                        f"{where}: {width}x{height} pixels are more than {MAX_PIXELS:,}; shrink or remove the picture"
                    )
                if size is not None:
                    picture.draft(
                        None, (2 * size, 2 * size)
                    )  # JPEG only: decode at a fraction of the size, much faster
                ops.exif_transpose(picture, in_place=True)  # otherwise it copies pictures that are upright
                rgb = _to_rgb(pillow, picture)
                if size is not None and rgb.size != (size, size):
                    rgb = ops.fit(rgb, (size, size), method=pillow.Resampling.BILINEAR)
                return np.asarray(rgb, dtype=np.uint8)
    except CorruptImageError:
        raise
    except Exception as error:  # pillow's decoders raise many types, among them SyntaxError and struct.error
        message = f"{where}: corrupt image ({line(error)}); fetch the file again or remove it"
        raise CorruptImageError(message) from error


def decoding_cost(source: bytes) -> tuple[int, int, int]:
    """Width, height, and about how much work a picture is, in pixels of the quick formats; reads no more than its head.

    Raises:
        PIL.UnidentifiedImageError: it is of none of the ``FORMATS``.
        Exception: its head is damaged; pillow's readers raise many types.
    """
    pillow = import_extra("PIL.Image", "pillow", "reading images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _opened(pillow, source) as picture:
            width, height = picture.size
            return width, height, width * height * _SLOW.get(picture.format, 1)


def _opened(pillow: Any, source: bytes | Path) -> Any:
    """Open a picture with the reader that its first bytes indicate, or try those of all ``FORMATS`` if they are unknown."""
    if isinstance(source, Path):
        return pillow.open(source, formats=_formats(pillow))
    kind = next((kind for start, kind in _KINDS.items() if source.startswith(start)), None)
    return pillow.open(io.BytesIO(source), formats=[kind] if kind else _formats(pillow))


def _formats(pillow: Any) -> list[str]:
    """Those of ``FORMATS`` that pillow was built with."""
    pillow.init()
    return [name for name in FORMATS if name in pillow.OPEN]


def _to_rgb(pillow: Any, picture: Any) -> Any:
    """8-bit RGB from any of pillow's modes."""
    if picture.mode == "F" or picture.mode.startswith("I"):
        return pillow.fromarray(_to_bytes(np.asarray(picture))).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = pillow.new("RGBA", rgba.size, "white")
        return pillow.alpha_composite(white, rgba).convert("RGB")
    return picture.convert("RGB")


def _to_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Grey values to 0..255: floats up to 1 are shares of white, integers beyond 255 are 16-bit."""
    top = float(np.nan_to_num(values).max(initial=0))
    if values.dtype.kind == "f":
        factor, divisor = (255, 1) if top <= 1 else (1, 1)
    else:
        factor, divisor = (1, 257) if top > 255 or values.dtype.itemsize == 2 else (1, 1)
    pixels: npt.NDArray[np.uint8] = np.empty(values.shape, np.uint8)
    step = max(1, _BLOCK // max(1, values.shape[1]))
    for at in range(0, len(values), step):  # of a large picture, doubles of all pixels at once would take gigabytes
        part = values[at : at + step]
        scaled = part * factor if factor != 1 else part / divisor if divisor != 1 else part
        pixels[at : at + step] = np.rint(np.clip(np.nan_to_num(scaled), 0, 255)).astype(np.uint8)
    return pixels


def warn_skipped(skipped: list[str], source: Path) -> None:
    """One warning that counts and names the skipped items."""
    if skipped:
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        warnings.warn(f"{source}: skipped {len(skipped)}: {'; '.join(skipped[:5])}{more}", DataWarning, stacklevel=3)


def line(error: BaseException) -> str:
    """The first line of an error's message, or its type when it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = [
    "FORMATS",
    "MAX_PIXELS",
    "SUFFIXES",
    "CorruptImageError",
    "MissingExtraError",
    "OnBad",
    "decode",
    "decoding_cost",
]
