"""``fedqssl plan``: what a run would cost, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedqssl.cli.words import source_name, split_words

if TYPE_CHECKING:
    from fedqssl.config import RunConfig
    from fedqssl.cost import Ledger

MEASURE_SECONDS = 12.0
"""Time for all measured steps; converting a large network to every bitwidth comes on top."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PRESET_OR_TOML KEY=VALUE",
        help="A preset (fedqssl list presets) or a TOML file, quickstart by default; and settings to change.",
    ),
]
Detail = Annotated[bool, typer.Option("--detail", help="The whole ledger: bit operations, memory, server work.")]
DeviceFile = Annotated[
    Path | None,
    typer.Option("--devices", help="TOML table of devices (docs/cost.md): time, energy and memory per client."),
]
Measure = Annotated[bool, typer.Option("--measure/--no-measure", help="Time a training step per bitwidth.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the ledger to this file.")]


def plan(
    words: Words = None,
    detail: Detail = False,
    devices: DeviceFile = None,
    measure: Measure = True,
    json: JsonFile = None,
) -> None:
    """Print clients, bits, bytes and an estimate of time, without training.

    For example: fedqssl plan cifar10-paper, or fedqssl plan quickstart bits=2,2,4,4 --detail --devices devices.toml
    """
    from fedqssl.config import load_config

    source, settings = split_words(words or ())
    config = load_config(source, settings)
    if json is not None and json.is_dir():
        raise ValueError(f"--json takes a file, and {json} is a folder")
    from fedqssl.cost import read_devices

    table = read_devices(devices) if devices is not None else None  # before seconds of measuring
    if table is not None and config.partition != "natural":
        from fedqssl.data.partition import client_names

        table.check(client_names(config.clients))
    found = _ledger(config, measure)
    if table is not None:
        table.check(list(found.clients))
    _show(found, source_name(source), detail)
    if table is not None:
        from fedqssl.cost.tables import device_lines, device_table

        console = Console()
        rounds = table.rounds(found)
        console.print(device_table(rounds))
        for line in device_lines(rounds):
            console.print(line, markup=False, highlight=False)
    if json is not None:
        found.write(json)
        typer.echo(f"wrote {json}")


def _ledger(config: RunConfig, measure: bool) -> Ledger:
    """The ledger, with what is being done shown on standard error."""
    console = Console(stderr=True)
    with _telling(console) as say:
        say("loading torch")
        import torch

        from fedqssl.cost import client_sizes, ledger
        from fedqssl.federated.algorithms import ALGORITHMS

        torch.set_num_threads(config.threads)
        if config.algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {config.algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
        say(f"counting the images of {config.data}")
        sizes = client_sizes(config)
        objective = getattr(ALGORITHMS[config.algorithm], "objective", None)
        seconds = MEASURE_SECONDS if measure else None
        return ledger(config, sizes, objective=objective, measure_seconds=seconds, say=say)


@contextmanager
def _telling(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that changes on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield lambda line: console.print(f"plan: {line}", markup=False, highlight=False, soft_wrap=True)
        return
    with console.status("planning") as status:
        yield lambda line: status.update(f"planning: {line}")


def _show(ledger: Ledger, source: str, detail: bool) -> None:
    from fedqssl.cost import estimate
    from fedqssl.cost.tables import detail_tables, headline, notes, plan_tables

    console = Console()
    measured = all(width.measured is not None for width in ledger.bitwidths.values())
    times = estimate(ledger) if measured else None
    console.print(headline(ledger, source), markup=False, highlight=False)
    for line in notes(ledger, times):
        console.print(f"note: {line}", markup=False, highlight=False)
    console.print()
    for table in (*plan_tables(ledger, times), *(detail_tables(ledger) if detail else ())):
        console.print(table)
        console.print()
