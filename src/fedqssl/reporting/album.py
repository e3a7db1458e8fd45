"""The pictures of a report as values, and ``pictures.json``, where a finished run keeps those that took long to make."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedqssl.files import parse_json, write_atomically
from fedqssl.reporting.data import RunData
from fedqssl.reporting.png import MOST_LETTERS

NAME = "pictures.json"
FORMAT = 1
"""Counts up when pictures are chosen or made differently, so that those of older versions are made again."""
SLOW = 1.0
"""Seconds above which pictures are kept."""
MOST_BYTES = 1_500_000
"""What the pictures and maps of a page take at most."""

Words = Annotated[str, Field(max_length=400)]
Share = Annotated[float, Field(ge=-1.001, le=1.001)]


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Picture(_Value):
    """A small picture, and what it shows."""

    uri: Annotated[str, Field(max_length=MOST_LETTERS, pattern=r"^data:image/png;base64,[A-Za-z0-9+/]+={0,2}$")]
    words: Words


class Row(_Value):
    """Pictures side by side: those of a client, the views of an image (first the image), or its neighbours."""

    words: Words
    pictures: Annotated[list[Picture], Field(max_length=8)]


class Answer(_Value):
    """A test image, and what the model's classifier says of it."""

    picture: Picture
    label: Words
    answer: Words
    confidence: Share


class Answers(_Value):
    """Right and wrong answers drawn at random, of ``asked`` images."""

    right: Annotated[list[Answer], Field(max_length=8)]
    wrong: Annotated[list[Answer], Field(max_length=8)]
    asked: Annotated[int, Field(ge=0, le=100_000)]
    correct: Annotated[int, Field(ge=0, le=100_000)]
    how: Words


class Map(_Value):
    """Places (x, y, class or -1) within -1..1, and the shares of the variance that the two directions hold."""

    points: Annotated[list[tuple[Share, Share, int]], Field(max_length=1000)]
    shares: tuple[Share, Share]


class Seen(_Value):
    """What a model makes of some images: neighbours, maps, answers.

    ``same`` are shares of neighbours of the same class: by features, by raw pixels, by chance; empty without labels.
    """

    model: Words
    images: Words
    near: Annotated[list[Row], Field(max_length=8)]
    same: Annotated[list[Share], Field(max_length=3)]
    features: Map
    pixels: Map
    class_names: Annotated[list[Words], Field(max_length=1 << 16)]
    answers: Answers | None = None


class Album(_Value):
    """All pictures of a report; ``seen`` is a sentence if no model could look at them."""

    key: str
    fleet: bool
    owners: Annotated[list[Row], Field(max_length=16)]
    clients: Annotated[int, Field(ge=0)]
    views: Annotated[list[Row], Field(max_length=8)]
    view_words: Words
    seen: Seen | Words


def key_of(run: RunData) -> str:
    """What the pictures depend on: the images, the newest checkpoint, the seed, and how they are made."""
    found = sorted((run.path / "checkpoints").glob("round-?????/state.json"))
    state = hashlib.sha256(found[-1].read_bytes()).hexdigest() if found else ""
    facts = FORMAT, run.environment.get("images_sha256"), state, run.config.seed
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _kept(run: RunData, key: str) -> Album | None:
    path = run.path / NAME
    with suppress(OSError, ValueError):
        if path.stat().st_size <= MOST_BYTES:
            found = Album.model_validate(parse_json(path.read_bytes()))
            return found if found.key == key else None
    return None


def album(run: RunData, make: Callable[[RunData, str], Album | str]) -> Album | str:
    """The pictures of a finished run: those that it kept, or new ones, which it keeps if they took long."""
    if run.result is None:  # a page that is made again and again must not slow down the run
        return "Pictures are made when the run ends."
    try:
        key = key_of(run)
    except OSError as error:
        return f"There are no pictures: the checkpoint cannot be read ({error.strerror})."
    kept = _kept(run, key)
    if kept is not None:
        return kept
    began = time.monotonic()
    found = make(run, key)
    if isinstance(found, Album) and time.monotonic() - began > SLOW:
        with suppress(OSError):
            write_atomically(run.path / NAME, found.model_dump_json().encode())
    return found


__all__ = [
    "MOST_BYTES",
    "NAME",
    "SLOW",
    "Album",
    "Answer",
    "Answers",
    "Map",
    "Picture",
    "Row",
    "Seen",
    "album",
    "key_of",
]
