"""``fedqssl plan``: what a run would cost, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedqssl.cli.arguments import TrustRun, Words, source_name, split_words

if TYPE_CHECKING:
    from fedqssl.config import RunConfig
    from fedqssl.cost import Devices, Ledger, Targets

MEASURE_SECONDS = 12.0
"""Seconds for all measured steps; converting a large network to every bitwidth takes extra time."""

Detail = Annotated[bool, typer.Option("--detail", help="The whole ledger: bit operations, memory, server work.")]
DeviceFile = Annotated[
    Path | None,
    typer.Option("--devices", help="TOML table of devices (docs/cost.md): time, energy, memory and bits per client."),
]
Seconds = Annotated[
    float | None,
    typer.Option("--target-round-seconds", help="Find bits with which no device's round takes longer than this."),
]
Bytes = Annotated[
    str | None,
    typer.Option("--target-bytes", help="Find bits with which no client's round transfers more than this, like 2 MB."),
]
Measure = Annotated[bool, typer.Option("--measure/--no-measure", help="Time a training step at each bitwidth.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the ledger to this file.")]


def plan(
    words: Words = None,
    detail: Detail = False,
    devices: DeviceFile = None,
    measure: Measure = True,
    json: JsonFile = None,
    target_round_seconds: Seconds = None,
    target_bytes: Bytes = None,
    trust: TrustRun = False,
) -> None:
    """Print clients, bits, bytes and an estimate of time, without training; with --devices, the bits that they can afford.

    For example: fedqssl plan cifar10-paper, or fedqssl plan quickstart --devices devices.toml --target-round-seconds 60
    """
    from fedqssl.config import load_config
    from fedqssl.config.load import check_trusted, code_of, parse_words, remarks

    source, settings = split_words(words or ())
    config = load_config(source, settings)
    typed = parse_words(settings).values()
    check_trusted(config, Path(source), trust or all(name in typed for name in code_of(config)))
    if json is not None and json.is_dir():
        raise ValueError(f"--json needs a file, but {json} is a folder")
    targets = _targets(target_round_seconds, target_bytes)
    table = _devices(config, devices or config.devices, targets)  # before seconds of measuring
    found, changed = _ledger(config, measure)
    changed = [*remarks(source, settings), *changed]
    if table is not None:
        table.check(list(found.clients))
    _show(found, source_name(source), detail, changed)
    more = {}
    if table is not None:
        _show_devices(found, table)
        more["plan"] = _show_choices(found, table, targets)
    if json is not None:
        found.write(json, **more)
        typer.echo(f"wrote {json}")


def _targets(round_seconds: float | None, round_bytes: str | None) -> Targets:
    from fedqssl.cost.devices import quantity
    from fedqssl.cost.planner import Targets

    if round_seconds is not None and not round_seconds > 0:
        raise ValueError(f"--target-round-seconds must be positive, not {round_seconds:g}")
    return Targets(round_seconds, None if round_bytes is None else quantity("memory", round_bytes, "--target-bytes"))


def _devices(config: RunConfig, path: Path | None, targets: Targets) -> Devices | None:
    """The device table; an empty one if only bytes are limited."""
    from fedqssl.cost import Devices, read_devices

    if path is None:
        if targets.round_seconds is not None:
            raise ValueError("--target-round-seconds needs --devices FILE, which says how fast the devices are")
        return None if targets.round_bytes is None else Devices("no device table", {}, (), {})
    table = read_devices(path)
    if config.partition != "natural":
        from fedqssl.data.partition import client_names

        table.check(client_names(config.clients))
    return table


def _show_devices(found: Ledger, table: Devices) -> None:
    """A round at the configuration's bits."""
    from fedqssl.cli.device_tables import device_lines, device_table

    console, rounds = Console(), table.rounds(found)
    console.print(device_table(rounds))
    for line in device_lines(rounds):
        console.print(line, markup=False, highlight=False)


def _show_choices(found: Ledger, table: Devices, targets: Targets) -> dict[str, Any]:
    """Find the bits and print them with a line to paste; returns them as plain values."""
    from fedqssl.cli.device_tables import choice_lines, choice_table
    from fedqssl.cost.planner import Planner, bits_line

    with _telling(Console(stderr=True)) as say:
        choices = Planner(found.config, found.sizes, targets, say).plan(table)
    console = Console()
    console.print()
    console.print(choice_table(choices))
    for line in choice_lines(choices):
        console.print(line, markup=False, highlight=False, soft_wrap=line.startswith("bits="))
    clients = {
        n: {"bits": c.bits, "binding": c.binding, "needs": c.needs, "advice": c.advice} for n, c in choices.items()
    }
    return {"line": bits_line(choices), "clients": clients}


def _ledger(config: RunConfig, measure: bool) -> tuple[Ledger, list[str]]:
    """The ledger, and what a run would change in its settings; progress is shown on standard error."""
    console = Console(stderr=True)
    with _telling(console) as say:
        say("loading torch")
        import torch

        from fedqssl.accelerators import resolve
        from fedqssl.cost import client_sizes, ledger
        from fedqssl.data.from_config import settled
        from fedqssl.federated.algorithms import get_algorithm

        torch.set_num_threads(config.threads)
        resolve(config.device)
        get_algorithm(config.algorithm)  # an unknown one is an error before the images are counted
        say(f"counting the images of {config.data}")
        config, changed = settled(config)
        sizes = client_sizes(config)
        return ledger(config, sizes, measure_seconds=MEASURE_SECONDS if measure else None, say=say), changed


@contextmanager
def _telling(console: Console) -> Iterator[Callable[[str], None]]:
    """A changing line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda line: console.print(f"plan: {line}", markup=False, highlight=False, soft_wrap=True)
        return
    with console.status("planning") as status:
        yield lambda line: status.update(f"planning: {line}")


def _show(ledger: Ledger, source: str, detail: bool, changed: list[str]) -> None:
    from fedqssl.cli.plan_tables import depth, detail_tables, headline, notes, plan_tables
    from fedqssl.cost import estimate

    console = Console()
    measured = all(width.measured is not None for width in ledger.bitwidths.values())
    times = estimate(ledger) if measured else None
    console.print(headline(ledger, source), markup=False, highlight=False)
    console.print(depth(ledger), markup=False, highlight=False)
    for line in (*changed, *notes(ledger, times)):
        console.print(f"note: {line}", markup=False, highlight=False)
    console.print()
    for table in (*plan_tables(ledger, times), *(detail_tables(ledger) if detail else ())):
        console.print(table)
        console.print()
