"""``fedqssl probe``: a classifier for a client, on its frozen low-bit model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedqssl.cli.arguments import TrustRun
from fedqssl.files import printable

if TYPE_CHECKING:
    from fedqssl.maker.probing import Probe

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Client = Annotated[str | None, typer.Option(help="Client whose model is used; fedqssl report shows the names.")]
Everyone = Annotated[bool, typer.Option("--all", help="All clients, without plots.")]
Data = Annotated[str | None, typer.Option(help="Other labeled data, like folder:PATH; by default the client's own.")]
Labels = Annotated[str, typer.Option(help="Share of the training labels used: all, 10%, 1%.")]
Kind = Annotated[str, typer.Option("--method", help="linear: a classifier in the client's bits; knn: no training.")]


def probe(
    source: Run,
    client: Client = None,
    everyone: Everyone = False,
    data: Data = None,
    labels: Labels = "all",
    method: Kind = "linear",
    trust: TrustRun = False,
) -> None:
    """Train and test a client's low-bit classifier on its frozen low-bit extractor.

    For example: fedqssl probe runs/demo --client client-03, or fedqssl probe runs/demo --all --data folder:photos --labels 10%
    """
    if everyone == (client is not None):
        raise ValueError("choose a client with --client NAME, or all of them with --all")
    import torch

    from fedqssl.maker.finished_run import FinishedRun
    from fedqssl.maker.probing import ProbeSettings, probe_client

    settings = ProbeSettings(data, labels, method)  # type: ignore[arg-type]
    run = FinishedRun.open(source, trust=trust)
    torch.set_num_threads(run.config.threads)  # as in the run, so that the codes are the same
    console, began, found = Console(), time.monotonic(), []
    for name in [run.client(client)] if client is not None else list(run.result.clients):
        found.append(probe_client(run, name, settings))
        written = found[-1].write(source / "clients" / name, draw=not everyone)
        if everyone:
            print_line(console, found[-1])
    if everyone:
        known = [p.outcome.accuracy for p in found if p.outcome.accuracy is not None]
        mean = _said(sum(known) / len(known) if known else None, ".1%")
        took = f"{len(found)} clients in {time.monotonic() - began:.1f} s"
        console.print(f"mean accuracy {mean}; {took}; details in {source}/clients/*/", highlight=False)
        return
    console.print(_table(found[0]))
    for path in written:
        typer.echo(f"wrote {path}")


def print_line(console: Console, found: Probe) -> None:
    """One client's line, printed as soon as it is done."""
    share, error = _said(found.outcome.accuracy, "6.1%"), _said(found.outcome.calibration_error, ".3f")
    line = f"{found.client}  {found.bits:2d} bits  accuracy {share}  calibration error {error}"
    console.print(f"{line}  ({found.train_images} labels, {found.outcome.images} test images)", highlight=False)


def _table(found: Probe) -> Table:
    judged = found.outcome
    title = f"{found.client}, {found.bits} bits: {_said(judged.accuracy, '.1%')} of {judged.images} test images"
    table = Table("class", "labels", "test images", "accuracy", title=title)
    error = _said(judged.calibration_error, ".3f")
    table.caption = f"calibration error {error}; {found.train_images} labels, {found.settings.method}"
    tests = judged.confusion.sum(1).tolist()
    for name, labels, count, share in zip(
        found.class_names, found.train_counts, tests, judged.per_class(), strict=True
    ):
        table.add_row(Text(printable(name)), str(labels), str(count), "" if share is None else f"{100 * share:.1f}%")
    return table


def _said(value: float | None, form: str) -> str:
    return "not measured" if value is None else format(value, form)
