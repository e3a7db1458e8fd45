"""How long a round waits for its clients when no ``deadline`` is set: a multiple of their usual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

FACTOR = 4.0
"""A round waits this many times as long as its slowest client usually takes."""
LEAST = 300.0
"""But never less than this many seconds: short rounds vary more."""
REMEMBERED = 5
"""Rounds of which a client's time is known."""


class Patience:
    """Learns how long clients take, from the request to the complete reply.

    Args:
        deadline: the run's own ``deadline`` in seconds; None to learn one.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.times: dict[str, list[float]] = {}

    def learn(self, answered: Mapping[str, float]) -> None:
        """Remember the seconds that clients took in a round."""
        for name, seconds in answered.items():
            self.times[name] = [*self.times.get(name, ()), seconds][-REMEMBERED:]

    def usual(self, name: str) -> float | None:
        """The median of a client's last times; None if it has not answered yet."""
        return median(self.times[name]) if self.times.get(name) else None

    def limit(self, asked: Sequence[str], answered: Mapping[str, float]) -> float | None:
        """Seconds that a round may take.

        Args:
            asked: the round's clients.
            answered: the seconds of those that have answered in this round, which count for those never seen before.

        Returns:
            The run's deadline; or ``FACTOR`` times the longest usual time, at least ``LEAST``; or None, no limit, as long as
            the times of fewer than half of the clients are known.
        """
        if self.deadline is not None:
            return self.deadline
        known = {name: self.usual(name) or answered.get(name) for name in asked}
        found = [seconds for seconds in known.values() if seconds is not None]
        if 2 * len(found) < len(asked) or not found:
            return None
        return max(LEAST, FACTOR * max(found))


__all__ = ["Patience"]
