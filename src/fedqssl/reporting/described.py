"""``partition.json`` and ``data.json`` of a run, as types: a folder of somebody else's may hold anything."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from fedqssl.files import is_folder_name

MOST = 1 << 40
"""Images that a client may have."""


def _name(name: str) -> str:
    if not is_folder_name(name):
        raise ValueError("not a client's name")
    return name


Name = Annotated[str, AfterValidator(_name)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Side = Annotated[int, Field(strict=True, ge=1, le=65536)]
Images = Count | list[Annotated[int, Field(strict=True)]]
"""Number of images (of a fleet's client), or their positions."""


class Split(BaseModel):
    """A client's images."""

    train: Images
    test: Images


class Splits(BaseModel):
    """``partition.json``."""

    clients: dict[Name, Split] = Field(min_length=1)
    buffer: Images


class Counts(BaseModel):
    """A client's images of each class."""

    train: list[Count]
    test: list[Count]


class Described(BaseModel):
    """``data.json``; runs of older versions have none."""

    image: tuple[Side, Side, Side] | None = None
    classes: Annotated[int, Field(strict=True, ge=0, le=1 << 20)] | None = None
    class_names: list[str] | None = None
    labels: dict[Name, Counts] | None = None


def count(images: Count | list[int]) -> int:
    """How many images these are."""
    return images if isinstance(images, int) else len(images)


__all__ = ["Counts", "Described", "Split", "Splits", "count"]
