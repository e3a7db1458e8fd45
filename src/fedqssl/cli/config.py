"""``fedqssl config``: the settings of a run, as TOML."""

from __future__ import annotations

from typing import Annotated

import typer

from fedqssl.cli.arguments import split_words


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="PRESET_OR_TOML KEY=VALUE", help="Where to start, and settings to change."),
    ] = None,
) -> None:
    """Print all settings as TOML; save it to a file and run that file."""
    from fedqssl.config import load_config, to_toml

    source, settings = split_words(words or ())
    typer.echo(to_toml(load_config(source, settings)), nl=False)
