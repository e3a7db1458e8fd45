"""Views by kind of images: what may change without changing what the image shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedqssl.config.sections import ViewsConfig
from fedqssl.ssl.views import ViewConfig

VIEW_PRESETS: dict[str, ViewConfig] = {
    "objects": ViewConfig(),
    "shapes": ViewConfig(scale=(0.4, 1.0), flip_p=0.0),
    "signs": ViewConfig(scale=(0.5, 1.0), flip_p=0.0),
    "colors": ViewConfig(scale=(0.4, 1.0), hue=0.02, grayscale_p=0.0),
    "textures": ViewConfig(scale=(0.1, 0.6), hue=0.05),
    "documents": ViewConfig(scale=(0.5, 1.0), flip_p=0.0, saturation=0.0, hue=0.0, grayscale_p=0.5),
    "none": ViewConfig(
        flip_p=0.0, brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0, jitter_p=0.0, grayscale_p=0.0
    ),
}
"""``objects``: SimCLR's for CIFAR. ``shapes``: they count, and have a right way round. ``signs``: the same, cut less. ``colors``:
flowers, food, products, which colours tell apart. ``textures``: any small part shows it all. ``documents``: shapes count, colours
do not. ``none``: crops alone, which no contrastive objective can do without."""

CANDIDATES = ("shapes", "objects", "colors")
"""What ``views.preset = "auto"`` chooses from; the first one where nothing can be chosen."""

_FIELDS = {"flip": "flip_p", "jitter": "jitter_p", "grayscale": "grayscale_p"}


def view_config(settings: ViewsConfig) -> ViewConfig:
    """The views that ``views.*`` asks for: the preset's, with the settings that are not None in place of its own.

    Example:
        >>> view_config(ViewsConfig()) == ViewConfig()
        True
        >>> view_config(ViewsConfig(preset="signs", size=24)).flip_p
        0.0

    Before ``auto`` has been decided, the views are those of the first candidate.
    """
    preset = CANDIDATES[0] if settings.preset == "auto" else settings.preset
    given: dict[str, Any] = settings.model_dump(exclude={"preset"}, exclude_none=True)
    return replace(VIEW_PRESETS[preset], **{_FIELDS.get(name, name): value for name, value in given.items()})


__all__ = ["CANDIDATES", "VIEW_PRESETS", "view_config"]
