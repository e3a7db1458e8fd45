"""``fedqssl list``: the names that settings can take."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Kind(str, Enum):
    """What can be listed."""

    presets = "presets"
    datasets = "datasets"
    models = "models"
    objectives = "objectives"
    algorithms = "algorithms"
    partitions = "partitions"
    features = "features"


class Described(Protocol):
    """An entry of any registry."""

    @property
    def description(self) -> str:
        """One line."""
        ...


REGISTRIES: dict[Kind, tuple[str, str]] = {
    Kind.presets: ("fedqssl.config.presets", "PRESETS"),
    Kind.datasets: ("fedqssl.data.registry", "DATASETS"),
    Kind.models: ("fedqssl.models.registry", "MODELS"),
    Kind.objectives: ("fedqssl.ssl.objectives", "OBJECTIVES"),
    Kind.algorithms: ("fedqssl.federated.algorithms", "ALGORITHMS"),
    Kind.partitions: ("fedqssl.data.partition", "PARTITIONS"),
    Kind.features: ("fedqssl.models.features", "FEATURES"),
}
"""Where each registry is; imported on demand, so that the command starts without torch."""


def registry(kind: Kind) -> Mapping[str, Described]:
    """Name -> entry with a description."""
    module, name = REGISTRIES[kind]
    entries: Mapping[str, Described] = getattr(importlib.import_module(module), name)
    return entries


def show(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List presets, datasets, models, objectives, algorithms, partitions or features."""
    table = Table(title=f"fedqssl {kind.value}", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for name, entry in registry(kind).items():
        table.add_row(Text(name), Text(entry.description))
    Console().print(table)
