"""Predictions, and the pictures that a caller means. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedqssl.data.errors import DataError
from fedqssl.data.pixels import SUFFIXES


@dataclass(frozen=True)
class Prediction:
    """The answer for one image: the likeliest class, the ``top`` classes with their probabilities, and the file it came from."""

    name: str
    probability: float
    top: tuple[tuple[str, float], ...]
    file: str | None = None


def named(values: Sequence[Sequence[float]], places: Sequence[Sequence[int]], names: Sequence[str]) -> list[Prediction]:
    """Predictions from the largest probabilities of each image and the classes that they belong to, largest first."""
    rows = zip(values, places, strict=True)
    found = [tuple((names[k], p) for p, k in zip(row, at, strict=True)) for row, at in rows]
    return [Prediction(best[0][0], best[0][1], best) for best in found]


def several(images: Any) -> Iterable[Any]:
    """One picture or several, as several; the path of a folder stands for all pictures below it."""
    if isinstance(images, (str, Path)):
        return find_pictures([Path(images)])
    single = isinstance(images, (bytes, bytearray)) or hasattr(images, "convert")
    if single or (hasattr(images, "ndim") and images.ndim < 4):
        return [images]
    return images  # type: ignore[no-any-return]


def find_pictures(sources: Iterable[Path]) -> list[Path]:
    """The files themselves, and all pictures below the folders, in order of their names.

    Raises:
        DataError: no such file, or a folder without pictures.
    """
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES and not _hidden(p, source))
            if not inside:
                raise DataError(f"{source}: no images here; supported are {', '.join(sorted(SUFFIXES))}")
            found += inside
        elif source.is_file():
            found.append(source)
        else:
            raise DataError(f"{source}: no such file or folder; pass images, or a folder of them")
    if not found:
        raise DataError("no images were given; pass image files, or a folder of them")
    return found


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in path.relative_to(root).parts)


__all__ = ["Prediction", "find_pictures", "named", "several"]
