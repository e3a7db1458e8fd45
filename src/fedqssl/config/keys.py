"""Names of settings: dotted keys to nested tables and back, and the nearest name for an unknown one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedqssl.imported import closest, nearest


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


__all__ = ["flat", "nearest", "nearest_key", "nested"]
