"""``fedqssl run``: start a run, or resume one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedqssl.cli.arguments import INTERRUPTED, Words, split_words

if TYPE_CHECKING:
    from fedqssl.config import RunConfig

Out = Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/<preset>-<number>.")]
Resume = Annotated[Path | None, typer.Option(help="Resume the run in this folder; with rounds=N, extend it.")]
Engine = Annotated[str | None, typer.Option(help="Engine: in_process, or flower-sim for Flower's simulation on Ray.")]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="With --resume: an error if kernels, threads or versions changed since the start."),
]
SetFile = Annotated[
    Path | None,
    typer.Option("--set-file", help="TOML file of settings to change; those on the command line come after it."),
]
Notify = Annotated[
    str | None,
    typer.Option(
        help="At the end: bell, or a command that gets FEDQSSL_RUN and FEDQSSL_STATUS (finished, stopped, failed)."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out if there is one.")]


def run(
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    overwrite: Overwrite = False,
    engine: Engine = None,
    exact: Exact = False,
    set_file: SetFile = None,
    notify: Notify = None,
) -> None:
    """Pre-train across clients, or resume a run.

    For example: fedqssl run quickstart rounds=20 --out runs/a, and after an interruption: fedqssl run --resume runs/a
    """
    if resume is not None:
        rounds = _more_rounds(words or ())
        if out is not None or overwrite or engine is not None or set_file is not None:
            raise ValueError("--resume uses the run's own configuration; leave out the other options")
        with _notifying(notify, resume):
            go(resume, None, exact=exact, rounds=rounds)
        return
    if exact:
        raise ValueError(
            "--exact belongs to --resume: it asks for the same bytes as if the run had not been interrupted"
        )
    from fedqssl.config import load_config
    from fedqssl.config.load import remarks

    source, settings = split_words(words or ())
    if set_file is not None:
        settings = [*_settings_in(set_file), *settings]
    if engine is not None:
        settings.append(f"engine={engine}")
    config = load_config(source, settings)
    for line in remarks(source, settings):
        typer.echo(f"note: {line}")
    from fedqssl.runs.find import next_folder

    folder = out if out is not None else next_folder(source)
    with _notifying(notify, folder):
        go(folder, config, overwrite)


@contextmanager
def _notifying(notify: str | None, folder: Path) -> Iterator[None]:
    """Ring the bell, or start a command, however the run ends; a command that fails does not change the run's own outcome."""
    status = "failed"
    try:
        yield
        status = "finished"
    except typer.Exit:
        status = "stopped"
        raise
    finally:
        if notify == "bell":
            typer.echo("\a", nl=False)
        elif notify is not None:
            names = {**os.environ, "FEDQSSL_RUN": str(folder), "FEDQSSL_STATUS": status}
            try:
                subprocess.run(shlex.split(notify), env=names, timeout=60, check=True)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                typer.echo(f"warning: --notify {notify} did not work ({error})", err=True)


def _settings_in(path: Path) -> list[str]:
    """The settings of a TOML file, as words of the command line."""
    from fedqssl.config.keys import flat
    from fedqssl.config.load import read_toml

    if not path.is_file():
        raise ValueError(f"--set-file {path}: no such file; it is a TOML file of settings, like rounds = 20")
    found = flat(read_toml(path))
    return [f"{key}={','.join(map(str, v)) if isinstance(v, list) else v}" for key, v in found.items()]


def _more_rounds(words: Sequence[str]) -> int | None:
    """The one setting that ``--resume`` takes."""
    from fedqssl.config.load import parse_words

    found = parse_words(words) if all("=" in word for word in words) else {"": ""}
    if not found:
        return None
    if found.keys() != {"rounds"} or not found["rounds"].isdecimal():
        raise ValueError(
            "--resume uses the run's own configuration; the only setting that it takes is more rounds, like rounds=20"
        )
    return int(found["rounds"])


def go(
    folder: Path,
    config: RunConfig | None,
    overwrite: bool = False,
    exact: bool = False,
    rounds: int | None = None,
) -> None:
    """Start (or, without a configuration, resume) the run in this folder and print its final table."""
    console = Console()
    try:
        from fedqssl import runs  # here, so that Ctrl-C during torch's import is caught too
        from fedqssl.cli.progress import TerminalProgress

        with TerminalProgress(console) as progress:
            if config is None and rounds is not None:
                result = runs.extend(folder, rounds, exact=exact, progress=progress)
            elif config is None:
                result = runs.resume(folder, exact=exact, progress=progress)
            else:
                result = runs.start(config, folder, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        typer.echo(f"stopped; {_how_to_go_on(folder)}")
        raise typer.Exit(INTERRUPTED) from None
    console.print(result.table())
    from fedqssl.reporting import finished_report

    typer.echo(finished_report(result.folder))
    typer.echo(f"results are in {result.folder}; start with {result.folder / 'summary.md'}")


def _how_to_go_on(folder: Path) -> str:
    if not (folder / "config.toml").exists():
        return f"nothing has been written to {folder} yet"
    return f"resume with: fedqssl run --resume {shlex.quote(str(folder))}"
