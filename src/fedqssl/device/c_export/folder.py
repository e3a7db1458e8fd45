"""The folder that ``fedqssl export --format c`` writes: sources, a Makefile, and a README that is the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedqssl import __version__
from fedqssl.device.c_export.arena import SUMS_BYTES, Plan, plan
from fedqssl.device.c_export.graph import lowered
from fedqssl.device.c_export.operations import Convolution, Network
from fedqssl.device.c_export.simulate import pattern, simulate
from fedqssl.device.c_export.writer import Source, filled, model_source, template

if TYPE_CHECKING:
    from fedqssl.device.model import DeviceModel

FILES = ("model.h", "model.c", "example_main.c", "Makefile", "README.md")
"""What is written."""


@dataclass(frozen=True, eq=False)
class CFolder:
    """The texts of all files by name, and what the model takes in bytes: static memory, and constants."""

    files: Mapping[str, str]
    ram_bytes: int
    table_bytes: int


def to_c(model: DeviceModel, max_ram: int | None = None) -> CFolder:
    """A device model as C; the same model gives the same bytes.

    Args:
        model: a model of 1 to 8 bits.
        max_ram: bytes of static memory that it may take.

    Raises:
        CExportError: names what has no counterpart in C.
        ArenaError: it needs more memory than ``max_ram``.
    """
    network = lowered(model)
    places = plan(network, max_ram)
    m = model.manifest
    source = model_source(network, places, m.class_names, __version__)
    header = filled(
        template("model.h"),
        VERSION=__version__,
        SIZE=m.size,
        CHANNELS=m.channels,
        CHANNEL_ORDER="red, green, blue" if m.channels == 3 else "grey",
        CLASSES=len(m.class_names),
        BITS=m.bits,
        SCORE_BITS=network.score_bits,
        RAM_BYTES=places.nbytes,
        TABLE_BYTES=source.table_bytes,
    )
    files = {
        "model.h": header,
        "model.c": source.text,
        "example_main.c": filled(template("example_main.c"), EXPECTED=_expected(network)),
        "Makefile": template("Makefile"),
        "README.md": model.card() + notes(network, places, source),
    }
    return CFolder(files, places.nbytes, source.table_bytes)


def _expected(network: Network) -> str:
    m = network.image
    image = pattern(m.size).reshape(1, m.height, m.width, m.channels)
    scores = simulate(network, image)[network.scores].ravel()
    return "".join(f"    {int(score)},\n" for score in scores)


def notes(network: Network, places: Plan, source: Source) -> str:
    """The part of the README about the C code."""
    image = network.image
    macs = sum(o.macs for o in network.operations if isinstance(o, Convolution))
    return filled(
        template("README.md"),
        BITS=network.bits,
        TABLE_BYTES=f"{source.table_bytes:,}",
        RAM_BYTES=f"{places.nbytes:,}",
        ARENA_BYTES=f"{places.codes:,}",
        WIDE_BYTES=f"{4 * places.wide:,}",
        SCRATCH_BYTES=f"{2 * places.scratch + SUMS_BYTES:,}",
        IMAGE_BYTES=f"{image.size:,}",
        MACS=f"{macs:,}",
        SCORE_BITS=network.score_bits,
    )


__all__ = ["FILES", "CFolder", "to_c"]
