"""The words after a verb: at most one source (a preset or a TOML file), and ``key=value`` settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DEFAULT = "quickstart"


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """The source (``quickstart`` if there is none) and the settings, in any order.

    Raises:
        ValueError: if there are two sources.
    """
    sources = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(sources) > 1:
        raise ValueError(
            f"one preset or TOML file at a time, not {' and '.join(sources)}; settings are key=value words, like rounds=20"
        )
    return (sources[0] if sources else DEFAULT), [word for word in words if word not in sources]


def source_name(source: str) -> str:
    """A short name for folders: the preset's, or the file's without its ending."""
    return Path(source).stem


__all__ = ["DEFAULT", "source_name", "split_words"]
