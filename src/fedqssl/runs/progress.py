"""What a run shows while it works: a line per round, and the progress of the round's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedqssl.units import bytes_text

Say = Callable[[str], None]


class Progress:
    """Shows plain lines only. The CLI has a subclass that draws a bar on terminals."""

    def __init__(self, say: Say = print) -> None:
        self._say = say

    def say(self, line: str) -> None:
        """Show a permanent line."""
        self._say(line)

    def tick(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` jobs of a kind are done."""

    def round(self, number: int, rounds: int) -> None:
        """A round begins."""

    def go_on(self, line: Mapping[str, Any]) -> bool:
        """Whether another round is wanted; ``line`` is that of ``metrics.jsonl``."""
        return True


def seconds(left: float) -> str:
    """``45 s``, ``12 min``, ``3.4 h``."""
    if left < 90:
        return f"{left:.0f} s"
    return f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"


def round_line(line: dict[str, Any], rounds: int, left: float) -> str:
    """One line per round: loss, kNN, bytes, time left."""
    knn = f"  kNN {100 * line['knn']:.1f}%" if line["knn"] is not None else ""
    if knn and (floor := line.get("untrained_knn")) is not None:
        knn += f" (untrained {100 * floor:.1f}%)"
    loss = f"  loss {line['loss']:.3f}" if line["loss"] is not None else ""
    traffic = bytes_text(line["bytes_up"] + line["bytes_down"])
    return f"round {line['round']}/{rounds}{loss}{knn}  {traffic}  {seconds(left)} left"
