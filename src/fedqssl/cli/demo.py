"""``fedqssl demo``: a run, its report, a device file and its answers, one after the other; what is there already is kept."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.arguments import DEFAULT, INTERRUPTED
from fedqssl.cli.run import go

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Settings of the run to change, like rounds=40 (fedqssl config quickstart)."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for everything that the demo makes.")]
Serve = Annotated[
    bool, typer.Option("--serve", help="At the end, serve the model on a page where you can drop images.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of that page, on this machine only.")]

ROUNDS = 10
"""A quarter of the preset's: enough to beat every control, in about a minute."""
CLIENT = "client-00"
"""Whose model becomes a device file: one of four bits."""
SEED = 1
"""Of the pictures: the run's own images have another, so the model has seen none of them."""


def demo(settings: Settings = None, out: Out = Path("fedqssl-demo"), serve: Serve = False, port: Port = 8000) -> None:
    """Show everything once, offline, in about two minutes: run, report, device file, predictions.

    For example: fedqssl demo, and after an interruption fedqssl demo again; finished parts are kept.
    """
    run, pictures, file = out / "run", out / "pictures", out / "phone.fqssl"
    _check(out, run, settings or [])
    if serve:
        from fedqssl.serve.running import check_serve

        check_serve()
    try:
        _train(run, settings or [])
        _draw(pictures)
        _export(run, file)
        _predict(file, pictures)
    except KeyboardInterrupt:
        typer.echo(f"stopped; continue with: fedqssl demo --out {shlex.quote(str(out))}")
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(_next_steps(run, file))
    if serve:
        from fedqssl.cli.serve import serve as serve_file

        serve_file(file, port=port)


def _check(out: Path, run: Path, settings: list[str]) -> None:
    """Refuse a folder that something else is in, and settings that come too late."""
    from fedqssl.runs.find import is_run

    if any("=" not in word for word in settings):
        raise ValueError("demo takes settings as key=value, like rounds=40; its folder is named by --out")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose another folder with --out")
    begun = is_run(run)
    if begun and settings:
        raise ValueError(f"the demo in {out} has begun with its own settings; leave yours out, or choose another --out")
    if not begun and out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} exists and is not a demo; choose another folder with --out")


def _train(run: Path, settings: list[str]) -> None:
    from fedqssl.config import load_config
    from fedqssl.runs.find import is_run

    if (run / "result.json").is_file():
        typer.echo(f"1. The run in {run} is finished; it is kept.")
        return
    resumed = is_run(run)
    typer.echo(f"1. Ten clients of 4 to 12 bits pre-train one model{', where they left off' if resumed else ''}.")
    go(run, None if resumed else load_config(DEFAULT, [f"rounds={ROUNDS}", *settings]))


def _draw(pictures: Path) -> None:
    """A picture of every class, which the run has not seen."""
    from fedqssl.data.scenes import CLASSES, scenes
    from fedqssl.files import write_atomically
    from fedqssl.reporting.png import png

    pictures.mkdir(parents=True, exist_ok=True)
    for name, image in zip(CLASSES, scenes(len(CLASSES), "test", SEED).images, strict=True):
        path = pictures / f"{name}.png"
        if not path.exists():
            write_atomically(path, png(image))


def _export(run: Path, file: Path) -> None:
    from fedqssl.maker.exporting import export_client
    from fedqssl.maker.finished_run import FinishedRun

    if file.exists():
        typer.echo(f"2. {file} is there; it is kept.")
        return
    opened = FinishedRun.open(run)
    export_client(opened, CLIENT, file, data=opened.config.data)
    typer.echo(f"2. Wrote {file}: the model of {CLIENT} in its own bits, with a classifier of all ten classes.")


def _predict(file: Path, pictures: Path) -> None:
    from fedqssl.device import load

    answers = load(file).predict(pictures)
    right = sum(answer.name == Path(answer.file or "").stem for answer in answers)
    typer.echo(f"3. It has not seen the pictures in {pictures}. {right} of its {len(answers)} answers are right:")
    for answer in answers:
        path = Path(answer.file or "")
        verdict = "right" if answer.name == path.stem else f"wrong, this is {path.stem}"
        typer.echo(f"   {path.name:<12} {answer.name:<8} {100 * answer.probability:5.1f}%  {verdict}")


def _next_steps(run: Path, file: Path) -> str:
    quoted = shlex.quote(str(file))
    return "\n".join(
        [
            f"The report is {run / 'report.html'}: open it in a browser. Next, try",
            f"   fedqssl serve {quoted}                 # a page where you can drop images",
            f"   fedqssl predict {quoted} YOUR_IMAGES",
            "   fedqssl run photos data=folder:YOUR_PHOTOS",
        ]
    )
