"""Pictures: what clients hold, what views do to it, and what the model makes of images that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedqssl.reporting.album import Album, Map, Seen
from fedqssl.reporting.data import RunData, short_best
from fedqssl.reporting.parts import Figure, Section
from fedqssl.reporting.svg import SHAPES, WIDTH, Drawing, Mark, dot, line, text
from fedqssl.reporting.theme import counted, percent

COLOURS = 6
"""Colours of classes; further classes have other shapes."""
MOST_CLASSES = COLOURS * len(SHAPES)
"""With more classes colours and shapes would repeat: all points look alike, and say their class on hover."""
_SIDE, _EDGE = 300.0, 14.0


def pictures(run: RunData, album: Album | str) -> Section:
    """The text above the pictures, and the maps; or why there are none."""
    if isinstance(album, str):
        return Section(empty=album)
    if album.fleet:
        lead = (
            "This run was on real machines: the clients' images stay on them, and the server has none. "
            "All pictures here are of the server's own buffer."
        )
    else:
        lead = (
            "In a simulation all images are on one machine. On a fleet of real machines the server never has clients' "
            "images, and only its buffer would be shown."
        )
    lead += " This page holds small copies of images: give it only to people who may see them."
    return Section(_maps(album.seen) if isinstance(album.seen, Seen) else (), lead)


def owners_note(album: Album) -> str:
    """Which clients are shown."""
    shown = len(album.owners) - 1
    if album.fleet or not shown:
        return "Drawn at random."
    some = f"{shown} of {counted(album.clients, 'client')}" if shown < album.clients else "All clients"
    return f"{some}, fewest bits first; training images drawn at random."


def neighbours_note(seen: Seen) -> str:
    """What the neighbours are, and how often they are of the same class, with controls."""
    words = f"First the image, then those with the most similar features (cosine) by {seen.model}, among {seen.images}."
    if seen.same:
        ours, pixels, chance = map(percent, seen.same)
        words += f" Of the same class: {ours} of all neighbours; by raw pixels {pixels}, by chance {chance}."
    return words


def answers_note(run: RunData, seen: Seen) -> str:
    """How many answers are right, beside the best control."""
    found = seen.answers
    if found is None:
        return ""
    share = percent(found.correct / found.asked if found.asked else None)
    words = f"{share} are right, of {seen.images}: {seen.model} with {found.how}."
    best, value = short_best(run.controls["global"])
    words += f" Best control on all test images: {best} {percent(value)}." if isfinite(value) else ""
    return f"{words} Drawn at random; below each picture the answer and how sure it is."


def _mark(kind: int, classes: int) -> Mark:
    if kind < 0 or classes > MOST_CLASSES:
        return Mark("circle", "accent")
    return Mark(SHAPES[kind // COLOURS % len(SHAPES)], f"g{kind % COLOURS}")


def _maps(seen: Seen) -> list[Figure]:
    found = []
    for name, title, of, what in (
        ("feature-map", "Map of features", seen.features, f"Features by {seen.model} of {seen.images}"),
        ("pixel-map", "Map of raw pixels, for comparison", seen.pixels, f"Raw pixels of {seen.images}"),
    ):
        both = percent(sum(of.shares))
        note = f"{what}. The two principal directions hold {both} of the variance."
        found.append(_figure(name, title, of, note, seen.class_names))
    return found


def _figure(name: str, title: str, of: Map, note: str, names: Sequence[str]) -> Figure:
    kinds = sorted({kind for _, _, kind in of.points if 0 <= kind < len(names)})
    legend = [(names[k], _mark(k, len(names))) for k in kinds] if len(names) <= MOST_CLASSES else []
    label = f"{title}: {counted(len(of.points), 'image')} along two principal directions"
    rows = [["first", percent(of.shares[0])], ["second", percent(of.shares[1])]]
    return Figure(name, title, label, _map_chart(of, names), note, legend, ["direction", "share of the variance"], rows)


def _map_chart(of: Map, names: Sequence[str]) -> Drawing:
    """Points in a square; both directions have the same scale."""
    left, half = (WIDTH - _SIDE) / 2, _SIDE / 2 - 8
    x0, y0 = WIDTH / 2, _EDGE + _SIDE / 2
    parts = [
        line(left, y0, left + _SIDE, y0, "rule"),
        line(x0, _EDGE, x0, _EDGE + _SIDE, "rule"),
        text(x0, 2 * _EDGE + _SIDE, "first direction →", at="middle", kind="label"),
        text(left - 8, y0, "second direction →", at="middle", kind="label", turn=-90),
    ]
    for x, y, kind in of.points:
        tip = names[kind] if 0 <= kind < len(names) else "an image"
        parts.append(dot(x0 + half * x, y0 - half * y, _mark(kind, len(names)), tip, 3.2))
    return Drawing(_SIDE + 2.4 * _EDGE, parts)


__all__ = ["answers_note", "neighbours_note", "owners_note", "pictures"]
