"""Whom a fleet's round is waiting for, for how long, and who has come back meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fedqssl.deploy.fleet import Fleet
from fedqssl.engines.flower.exchange import Watch
from fedqssl.engines.flower.patience import Patience
from fedqssl.units import seconds_text

QUIET = 30.0
"""Seconds before anybody is called late; more if a client usually takes longer."""
EVALUATION = 3600.0
"""Seconds that the evaluation may take at least, if the run has no deadline: it also makes the device files."""


class FleetWatch(Watch):
    """Sees rounds through.

    Args:
        fleet: its server writes to ``nodes.json`` how often each client has joined.
        patience: how long a round may take.
        changed: called with the clients that are awaited now, and since when.
        say: receives a line when a round takes longer than usual.
        clock: seconds.
    """

    come_back = 60.0

    def __init__(
        self,
        fleet: Fleet,
        patience: Patience,
        changed: Callable[[list[str], float], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.fleet, self.patience, self.changed, self.say, self.clock = fleet, patience, changed, say, clock
        self.what, self.asked, self.evaluating = "the round", list[str](), False
        self._shown: list[str] = []
        self._began = self._next_line = self._looked = 0.0
        self._joins: dict[str, int] = {}

    def begin(self, names: Sequence[str]) -> None:
        """See :class:`Watch`."""
        usual = [seconds for name in names if (seconds := self.patience.usual(name)) is not None]
        self.asked, self._shown, self._began = list(names), [], self.clock()
        self._next_line = max(QUIET, 1.5 * max(usual, default=0.0))
        self._joins = self._joined()

    def limit(self, answered: Mapping[str, float]) -> float | None:
        """See :class:`Watch`."""
        found = self.patience.limit(self.asked, answered)
        if self.evaluating and self.patience.deadline is None:
            return max(EVALUATION, found or 0.0)
        return found

    def awaited(self, names: Sequence[str], seconds: float) -> None:
        """See :class:`Watch`."""
        if list(names) != self._shown and (not names or self.clock() - self._looked >= 1.0):
            self._shown, self._looked = list(names), self.clock()
            self.changed(self._shown, self._began)
        if names and seconds >= self._next_line:
            self._next_line = 2 * seconds
            done, who = len(self.asked) - len(names), ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            self.say(
                f"{self.what} is waiting for {who} ({done} of {len(self.asked)} done after {seconds_text(seconds)})"
            )

    def end(self, answered: Mapping[str, float]) -> None:
        """See :class:`Watch`."""
        if not self.evaluating:
            self.patience.learn(answered)
        self.changed([], 0.0)

    def returned(self) -> Collection[str]:
        """See :class:`Watch`."""
        now, before = self._joined(), self._joins
        self._joins = {**before, **now}
        return [name for name in self.asked if now.get(name, 0) > before.get(name, 0)]

    def _joined(self) -> dict[str, int]:
        clients: dict[str, Any] = self.fleet.exchanged("nodes.json").get("clients") or {}
        return {name: int(told.get("joins", 0)) for name, told in clients.items()}


__all__ = ["FleetWatch"]
