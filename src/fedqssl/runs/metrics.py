"""The lines of ``metrics.jsonl``, which other programs may have written: what a reader may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedqssl.evaluation.collapse import Collapse
from fedqssl.files import parse_json

MOST_ROUNDS = 1 << 31
LARGEST = 1e18
"""No figure of a run is larger: bytes of all rounds, seconds, losses."""
_NUMBERS = (
    *("lr", "loss", "skipped_steps", "bytes_up", "bytes_down", "client_seconds", "server_seconds"),
    *("knn", "untrained_knn", "clients_wall_seconds", "simulated_seconds", "simulated_time", "simulated_joules"),
)
_BY_CLIENT = ("dequantize_loss", "weights", "training_seconds", "clusters")
_COLLAPSE = tuple(Collapse.__dataclass_fields__)


def is_number(value: object) -> bool:
    """Whether a value is a finite number of sensible size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def _as_expected(key: str, value: Any) -> bool:
    """Whether a known figure has its type; figures of other versions may have any."""
    if key in _NUMBERS:
        return _number_or_none(value)
    if key in _BY_CLIENT:
        return isinstance(value, dict) and all(map(_number_or_none, value.values()))
    if key in ("client_loss", "cluster_distances"):
        lists = value.values() if isinstance(value, dict) else [None]
        return all(isinstance(losses, list) and all(map(_number_or_none, losses)) for losses in lists)
    if key == "rejected":
        return isinstance(value, dict) and all(isinstance(why, str) for why in value.values())
    if key == "round_rejected":
        return isinstance(value, str)
    if key == "collapse":
        known = isinstance(value, dict) and value.keys() == set(_COLLAPSE)
        return value is None or (known and all(map(is_number, value.values())))
    return True


def read_line(text: str) -> dict[str, Any]:
    """A line of ``metrics.jsonl``.

    Raises:
        ValueError: it is not JSON, or has no round.
    """
    line = parse_json(text)
    if not isinstance(line, dict) or type(line.get("round")) is not int or not 0 <= line["round"] <= MOST_ROUNDS:
        raise ValueError("a line does not begin with its round")
    return line


def unexpected(line: Mapping[str, Any]) -> list[str]:
    """The figures of a line that are not what a run writes there."""
    return [key for key, value in line.items() if not _as_expected(key, value)]


def checked_line(text: str) -> dict[str, Any]:
    """As :func:`read_line`; a figure of an unexpected type is an error, too."""
    line = read_line(text)
    wrong = unexpected(line)
    if wrong:
        raise ValueError(f"{wrong[0]} of round {line['round']} is not what a run writes")
    return line


def readable_line(text: str) -> dict[str, Any]:
    """As :func:`read_line`, without figures of unexpected types."""
    line = read_line(text)
    for key in unexpected(line):
        del line[key]
    return line


__all__ = ["checked_line", "is_number", "read_line", "readable_line"]
