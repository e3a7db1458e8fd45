"""``fedqssl config``: the settings of a run, as TOML; or how two sets of settings differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedqssl.cli.arguments import split_words

Diff = Annotated[
    tuple[str, str] | None, typer.Option("--diff", metavar="A B", help="How two presets, TOML files or runs differ.")
]
Bare = Annotated[bool, typer.Option("--bare", help="Without the sentences that explain the settings.")]


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PRESET_OR_TOML KEY=VALUE", help="Where to start, and settings to change."),
    ] = None,
    diff: Diff = None,
    bare: Bare = False,
) -> None:
    """Print all settings as TOML, each with a sentence; save it to a file and run that file.

    For example: fedqssl config quickstart rounds=20 > mine.toml, or fedqssl config --diff quickstart mine.toml
    """
    from fedqssl.config import load_config, to_toml
    from fedqssl.config.describe import with_comments

    if diff is not None:
        if words or bare:
            raise ValueError("--diff takes two presets, TOML files or runs, and nothing else")
        _differences(*diff)
        return
    source, settings = split_words(words or ())
    found = load_config(source, settings)
    typer.echo(to_toml(found) if bare else with_comments(found), nl=False)


def _differences(one: str, two: str) -> None:
    from fedqssl.config import load_config
    from fedqssl.config.describe import differences
    from fedqssl.config.load import load_run_config

    runs = [Path(name) for name in (one, two) if Path(name, "config.toml").is_file()]
    found = differences(*(load_run_config(Path(n)) if Path(n) in runs else load_config(n) for n in (one, two)))
    if not found:
        typer.echo(f"{one} and {two} have the same settings")
        return
    table = Table("setting", one, two, box=None, pad_edge=False)
    for row in found:
        table.add_row(*row)
    Console().print(table, markup=False)
