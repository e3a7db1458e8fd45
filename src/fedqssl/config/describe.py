"""Settings in words: TOML with a comment for each setting, a page of all of them, and differences.

``python -m fedqssl.config.describe`` prints ``docs/settings.md``.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedqssl.config.keys import flat
from fedqssl.config.load import toml_line, toml_value
from fedqssl.config.schema import RunConfig

WIDTH = 118


def with_comments(config: RunConfig) -> str:
    """All settings as TOML, each below its sentence; those that are None are comments."""
    plain, tables = [], []
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            lines = [_commented(key, getattr(value, key), inner) for key, inner in type(value).model_fields.items()]
            tables.append("\n".join([f"\n[{name}]", *lines]))
        else:
            plain.append(_commented(name, value, field))
    return "\n".join(plain + tables) + "\n"


def _commented(name: str, value: object, field: FieldInfo) -> str:
    line = f"# {name} =" if value is None else toml_line(name, value)
    return "\n".join([*(f"# {part}" for part in _wrapped(sentence(field), WIDTH)), line])


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    if line:
        yield line


def sentence(field: FieldInfo) -> str:
    """What a setting means, in plain text."""
    return " ".join((field.description or "").replace("``", "`").split())


def every_setting() -> Iterator[tuple[str, FieldInfo, object]]:
    """Dotted key, field and default of all settings, tables after the plain ones."""
    tables = []
    for name, field in RunConfig.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            tables += [
                (f"{name}.{key}", inner, getattr(default, key)) for key, inner in type(default).model_fields.items()
            ]
        else:
            yield name, field, default
    yield from tables


def allowed(field: FieldInfo) -> str:
    """What values a setting takes: ``iid, dirichlet, ...``, ``whole number, at least 1``."""
    found = _kinds(field.annotation, list(field.metadata))
    return " or ".join(dict.fromkeys(found))


_WORDS = {int: "whole number", float: "number", str: "text"}
_WORDS_OF_LISTS = {int: "whole numbers", float: "numbers", str: "names"}
_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


def _kinds(annotation: Any, limits: Sequence[Any]) -> list[str]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _kinds(inner[0], [*limits, *inner[1:]])
    if origin is Literal:
        return [", ".join(f"`{word}`" for word in inner)]
    if origin in (typing.Union, types.UnionType):
        return [word for part in inner for word in (["none"] if part is type(None) else _kinds(part, limits))]
    if origin is tuple:
        entry = get_args(inner[0])[0] if get_origin(inner[0]) is typing.Annotated else inner[0]
        return [f"list of {_WORDS_OF_LISTS[entry]}"]
    bounds = [f"{word} {found:g}" for name, word in _LIMITS for found in _bounds(limits, name)]
    return [", ".join([_WORDS.get(annotation, "path"), *bounds])]


def _bounds(limits: Sequence[Any], name: str) -> Iterator[float]:
    for limit in limits:
        for found in (limit, *getattr(limit, "metadata", ())):
            if getattr(found, name, None) is not None:
                yield getattr(found, name)


def page() -> str:
    """``docs/settings.md``."""
    lines = [
        "# Settings",
        "",
        "All settings of a run, with their defaults; presets change some of them (`fedqssl config PRESET` prints a preset with",
        "these sentences, `fedqssl config --diff A B` what differs between two). On the command line write `key=value`, in a",
        'TOML file `key = value` with tables for the dotted ones, in Python `fedqssl.run(..., **{"ssl.temperature": 0.2})`.',
        "This page is generated: `python -m fedqssl.config.describe > docs/settings.md`.",
        "",
        "| setting | default | values | meaning |",
        "|---|---|---|---|",
    ]
    for key, field, default in every_setting():
        shown = "" if default is None else f"`{toml_value(default)}`"
        lines.append(f"| `{key}` | {shown} | {allowed(field)} | {sentence(field).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def differences(one: RunConfig, two: RunConfig) -> list[tuple[str, str, str]]:
    """Key and both values of every setting in which two configurations differ."""
    a, b = (flat(config.model_dump()) for config in (one, two))
    return [(key, _shown(a[key]), _shown(b[key])) for key in a if a[key] != b[key]]


def _shown(value: object) -> str:
    return "none" if value is None else toml_value(value)


if __name__ == "__main__":
    print(page(), end="")


__all__ = ["allowed", "differences", "every_setting", "page", "sentence", "with_comments"]
