"""Names of settings: dotted keys to nested tables and back, and the nearest name for an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedqssl.imported import closest, nearest

INSTEAD = {"local_steps": "local_epochs", "server.steps": "server.dequantize_epochs", "buffer": "buffer_ratio"}
"""Settings that take another's place: exactly one of the two is in force, the other is None."""
_BELONGS = {"buffer": ("buffer_images",)}
"""Settings that go with one of these, and are replaced with it."""


def nearest_key(name: str, known: Iterable[str]) -> str:
    """As :func:`nearest` for dotted keys: the last part alone counts too (``knn_evry``, ``requantize_epochs``)."""
    known = list(known)
    if hint := nearest(name, known):
        return hint
    by_last = {key.rpartition(".")[2]: key for key in known}
    found = closest(name.rpartition(".")[2], by_last, cutoff=0.75)
    return f"; did you mean {by_last[found]!r}?" if found else ""


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"ssl": {"temperature": 1}}`` -> ``{"ssl.temperature": 1}``."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of :func:`flat`."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        (result.setdefault(table, {}) if table else result)[name] = value
    return result


def none(value: object) -> object:
    """On the command line, ``none`` removes a limit."""
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of all layers; later ones win, and one of two in ``INSTEAD`` replaces an earlier layer's other one."""
    result: dict[str, Any] = {}
    for layer in layers:
        for pair in INSTEAD.items():
            if any(none(layer.get(name)) is not None for name in pair):
                gone = (*pair, *_BELONGS.get(pair[0], ()))
                result = {key: value for key, value in result.items() if key not in gone}
        result |= layer
    return result


def one_of_two(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with the one that is not in force set to None, for every pair of ``INSTEAD``.

    Raises:
        ValueError: both are given.
    """
    result = dict(given)
    for new, old in INSTEAD.items():
        named = [name for name in (new, old) if none(given.get(name)) is not None]
        if len(named) == 2:
            raise ValueError(f"{new} and {old} exclude each other; remove one of them")
        if named == [new]:
            result[old] = None
        elif not named:  # the default of the old one holds
            result.pop(old, None)
    return result


__all__ = ["INSTEAD", "flat", "layered", "nearest", "nearest_key", "nested", "none", "one_of_two"]
