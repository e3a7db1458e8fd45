"""Entry point of the ``fedqssl`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from fedqssl import __version__
from fedqssl.cli import (
    bench,
    compare,
    config,
    demo,
    deploy,
    doctor,
    export,
    listing,
    plan,
    predict,
    probe,
    report,
    reproduce,
    run,
    serve,
    sweep,
    theory,
    watch,
)
from fedqssl.files import printable

app = typer.Typer(
    name="fedqssl",
    help="Federated self-supervised pre-training in each device's own bits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(deploy.app, name="deploy")
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("reproduce")(reproduce.reproduce)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("plan")(plan.plan)
app.command("config")(config.config)
app.command("list")(listing.show)
app.command("doctor")(doctor.doctor)
app.command("theory")(theory.theory)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("probe")(probe.probe)
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedqssl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated self-supervised pre-training in each device's own bits."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; wrong input ends in one line and exit code 2 (with FEDQSSL_DEBUG=1, a traceback)."""
    try:
        app(args=arguments)
    except (ValueError, OSError) as error:
        if os.environ.get("FEDQSSL_DEBUG") == "1":
            raise
        print("error:", printable(" ".join(str(error).split())), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
