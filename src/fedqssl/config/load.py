"""Configurations from presets, TOML files, ``key=value`` words and Python keywords; and back to TOML."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedqssl.config.keys import flat, layered, nearest
from fedqssl.config.presets import PRESETS
from fedqssl.config.schema import ConfigError, RunConfig, make_config
from fedqssl.files import absolute

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RETIRED: dict[str, object] = {}
"""Removed settings with their old defaults: files of older runs still list them."""
_NOT_ACCURACY = (
    *("data_dir", "devices", "seed", "threads", "server.threads", "workers", "track", "evaluation.knn_every"),
    "evaluation.controls",
    *("engine", "client_cpus", "client_gpus", "deadline", "device", "workers_per_gpu"),
)
BEFORE: dict[str, object] = {
    **{"evaluation.classifier": "sgd", "evaluation.probe": "fixed"},
    **{"lowbit.scale": "round", "server.requantize_start": "codes"},
}
"""What older runs did where that is not the default now: a run's own file that lacks the setting is older than it."""
_ONLY_FOR = {"beta": "dirichlet", "classes_per_client": "classes", "minority": "skew"}


def load_config(source: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> RunConfig:
    """A checked configuration.

    Args:
        source: name of a preset, or a TOML file.
        overrides: ``["rounds=20", "ssl.temperature=0.2"]`` as on the command line, or ``{"rounds": 20}`` with plain or
            dotted keys. A list of ``bits`` without ``clients`` sets the number of clients.

    Raises:
        ConfigError: one line that says what is wrong and what is allowed.

    Example:
        >>> load_config("smoke", ["rounds=3", "bits=2,32"]).clients
        2
    """
    base = _read(source)
    changes = flat(overrides) if isinstance(overrides, Mapping) else parse_words(overrides)
    if "bits" in changes and "clients" not in changes and not _single(changes["bits"]):
        base.pop("clients", None)
    try:
        return make_config(layered(base, changes))
    except ConfigError as error:
        where = f"{source}: " if isinstance(source, Path) or source not in PRESETS else ""
        raise ConfigError(f"{where}{error}") from None


def _single(bits: object) -> bool:
    """One bitwidth for all clients, rather than a list of them."""
    if isinstance(bits, str):
        return "," not in bits
    return not isinstance(bits, Sequence) or len(bits) == 1


def load_run_config(folder: Path) -> RunConfig:
    """The configuration of a run's folder, which lists every setting that there was when the run began.

    Raises:
        ConfigError: as :func:`load_config`.
    """
    path = folder / "config.toml"
    missing = BEFORE.keys() - _read(path).keys() if path.is_file() else set[str]()
    return load_config(path, {name: BEFORE[name] for name in missing})


def code_of(config: RunConfig) -> list[str]:
    """The import paths (``package.module:NAME``) that a configuration names: code that using it runs."""
    return [name for name in (config.model, config.algorithm) if ":" in name]


def check_trusted(config: RunConfig, where: Path, trust: bool) -> None:
    """Raise an error if settings that came with somebody's files name code, unless the user trusts them."""
    named = code_of(config)
    if named and not trust:
        raise ConfigError(
            f"{where} names {named[0]!r}, code that this would import and run; if you trust it, add --trust (in Python "
            "trust=True)"
        )


def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """``["rounds=20"]`` -> ``{"rounds": "20"}``; the last of two equal keys wins."""
    return dict(_pairs(words))


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"settings are written key=value, like rounds=20; not {word!r}")
        pairs.append((key.strip(), value.strip()))
    return pairs


def remarks(source: str | Path, words: Sequence[str]) -> list[str]:
    """What a user may not have meant, in a line each: a setting given twice, a fleet of another size than the preset's."""
    pairs = _pairs(words)
    given = dict(pairs)
    lines = [
        f"{key} is given {count} times; {given[key]} is used"
        for key in given
        if (count := sum(name == key for name, _ in pairs)) > 1
    ]
    before, after = load_config(source).clients, load_config(source, words).clients
    if "bits" in given and "clients" not in given and after != before:
        lines.append(f"bits has {after} entries, so there are {after} clients; {Path(source).stem} has {before}")
    return lines


def _read(source: str | Path) -> dict[str, Any]:
    """Dotted keys of a preset or a TOML file."""
    if isinstance(source, str) and source in PRESETS:
        return flat(tomllib.loads(PRESETS[source].text))
    path = Path(source)
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder; to resume its run use --resume {path}, to start a new one use {path / 'config.toml'}"
        )
    if not path.is_file():
        known = ", ".join(PRESETS)
        raise ConfigError(f"no preset and no file {str(source)!r}{nearest(str(source), PRESETS)} (presets: {known})")
    found = flat(read_toml(path))
    for key, default in RETIRED.items():
        if (value := found.pop(key, default)) != default:
            raise ConfigError(
                f"{path}: the setting {key!r} no longer exists, and {value!r} was not its default; remove it"
            )
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file that exists.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def to_toml(config: RunConfig) -> str:
    """All settings as TOML, without loss: reading it gives an equal configuration. Settings that are None are left out."""
    plain, tables = [], []
    for name, value in config.model_dump().items():
        if isinstance(value, dict):
            tables.append("\n".join([f"\n[{name}]", *(toml_line(k, v) for k, v in value.items() if v is not None)]))
        elif value is not None:
            plain.append(toml_line(name, value))
    return "\n".join(plain + tables) + "\n"


def toml_line(name: str, value: object) -> str:
    """``name = value``."""
    return f"{name} = {toml_value(value)}"


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, (int, float)):
        return repr(value)
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def accuracy_settings(config: RunConfig) -> dict[str, Any]:
    """Everything that affects accuracy, by dotted key.

    Left out: the seed, where the data are, where the run executes, how often it is monitored, and settings of unused partitions.
    ``server.lr`` is replaced by the value it stands for.
    """
    values = flat(config.model_dump(mode="json"))
    values["server.lr"] = values["server.lr"] or values["lr"]
    values["data"] = absolute(config.data)
    if config.buffer is None:
        del values["buffer_images"]
    else:
        values["buffer"] = absolute(config.buffer)
        del values["buffer_draw"]
    for name in _NOT_ACCURACY:
        if name != "deadline" or config.clock is None:  # a simulated one decides who is averaged
            del values[name]
    for name, partition in _ONLY_FOR.items():
        if config.partition != partition:
            del values[name]
    return values


__all__ = [
    "BEFORE",
    "RETIRED",
    "accuracy_settings",
    "check_trusted",
    "code_of",
    "load_config",
    "load_run_config",
    "parse_words",
    "read_toml",
    "remarks",
    "to_toml",
    "toml_line",
    "toml_value",
]
