"""The words after a verb: at most one source (a preset or a TOML file), and ``key=value`` settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

DEFAULT = "quickstart"
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PRESET_OR_TOML KEY=VALUE",
        help="A preset (fedqssl list presets) or a TOML file, quickstart by default; and settings to change.",
    ),
]
"""The words of ``run`` and ``plan``."""


TrustRun = Annotated[
    bool, typer.Option("--trust", help="Allow importing a model or algorithm that the run names (package.module:NAME).")
]
"""Of commands that read somebody's run or settings."""


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """The source (``quickstart`` if there is none) and the settings, in any order.

    Raises:
        ValueError: if there are two sources.
    """
    sources = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(sources) > 1:
        raise ValueError(
            f"give one preset or TOML file, not {' and '.join(sources)}; settings are written key=value, like rounds=20"
        )
    return (sources[0] if sources else DEFAULT), [word for word in words if word not in sources]


def parse_bit_range(text: str) -> tuple[int, ...]:
    """The ``--bits`` option of measurements: ``"2..12"`` or ``"2,4,8"`` -> bitwidths, each within 1..16, in order.

    Raises:
        ValueError: if the text is neither, or a bitwidth is out of range.
    """
    try:
        if ".." in text:
            low, high = (int(part) for part in text.split(".."))
            bits = tuple(range(low, high + 1))
        else:
            bits = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise ValueError(f"--bits takes a range like 2..12 or a list like 2,4,8; not {text!r}") from None
    if not bits:
        raise ValueError(f"--bits {text} is an empty range; write the smaller number first")
    wrong = [bit for bit in bits if not 1 <= bit <= 16]
    if wrong:
        raise ValueError(f"--bits takes whole numbers from 1 to 16, not {', '.join(map(str, wrong))}")
    return bits


@contextmanager
def resumable(verb: str, *words: str, **options: object) -> Iterator[None]:
    """On Ctrl-C, print how to resume the command with the same arguments and options; finished runs are kept.

    Args:
        verb: of the command line.
        words: after the verb.
        options: by name; None is left out, and a list repeats its option.
    """
    try:
        yield
    except KeyboardInterrupt:
        command = ["fedqssl", verb, *words]
        for name, value in options.items():
            for one in value if isinstance(value, list) else [value]:
                command += [] if one is None else [f"--{name}", str(one)]
        typer.echo(f"stopped; finished runs are kept; resume with: {shlex.join(command)}")
        raise typer.Exit(INTERRUPTED) from None


def source_name(source: str) -> str:
    """A short name for folders: the preset's, or the file's without its ending."""
    return Path(source).stem


__all__ = ["DEFAULT", "INTERRUPTED", "TrustRun", "Words", "parse_bit_range", "resumable", "source_name", "split_words"]
