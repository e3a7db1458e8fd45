"""How long a run has still to go: from the seconds that clients of each bitwidth took so far, the server's, and the rest.

With r_b the seconds per image that clients of b bits took, over all rounds so far, a later round is expected to take

    o sum_k r_{b_k} n_k + s

over the clients k that will take part in it, where n_k is the number of images that k goes through, o the share of the clients'
seconds that passes on the clock (below 1 if several train at once), and s the mean of what else a round takes. The first round of
a process also starts its workers: as soon as there is another round, o and s are taken without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedqssl.federated.context import Context
from fedqssl.runs.round import sampled

MOST = 200
"""Rounds that are looked at one by one; more are expected to take as long as these."""
MOST_DRAWN = 20_000
"""Clients that these rounds are drawn from, all in all: in large fleets fewer rounds are looked at, at least one."""


class TimeLeft:
    """Learns from every round."""

    def __init__(self) -> None:
        self._spent: dict[int, float] = {}
        self._images: dict[int, float] = {}
        self._rounds: list[tuple[float, float, float]] = []  # on the clock, of all clients, what else
        self._first: int | None = None

    def saw(self, context: Context, line: Mapping[str, Any], seconds: float | None = None) -> None:
        """Note a round by its line of metrics; ``seconds`` is how long it took in all, if that was measured."""
        known = line.get("training_seconds") or {}
        for name, spent in known.items():
            if name in context.bits and spent is not None:
                bits = context.bits[name]
                self._spent[bits] = self._spent.get(bits, 0.0) + spent
                self._images[bits] = self._images.get(bits, 0.0) + _images(context, name)
        clients = (line.get("clients_wall_seconds") or 0.0) if known else 0.0
        rest = max(seconds - clients, 0.0) if seconds is not None else line.get("server_seconds") or 0.0
        if seconds is not None and self._first is None:
            self._first = len(self._rounds)
        self._rounds.append((clients, sum(known[n] or 0.0 for n in known if n in context.bits), rest))

    def left(self, context: Context, done: int) -> float:
        """Seconds until the last round has ended, if ``done`` rounds have; 0 before anything was seen."""
        rounds = range(done, context.config.rounds)
        if not self._rounds or not rounds:
            return 0.0
        looked = rounds[: 1 if _all_take_part(context) else max(min(MOST, MOST_DRAWN // len(context.bits)), 1)]
        expected = sum(self._clients(context, number) for number in looked) / len(looked)
        return len(rounds) * (expected + sum(rest for *_, rest in self._usual()) / len(self._usual()))

    def _usual(self) -> list[tuple[float, float, float]]:
        """The rounds without the one that started the workers, if there are others."""
        return [found for i, found in enumerate(self._rounds) if i != self._first] or self._rounds

    def _rates(self) -> dict[int, float]:
        """Seconds per image by bitwidth."""
        return {bits: self._spent[bits] / self._images[bits] for bits in self._spent if self._images[bits]}

    def _clients(self, context: Context, number: int) -> float:
        rates = self._rates()
        clock, spent = (sum(found[i] for found in self._usual()) for i in (0, 1))
        if not rates or not spent:
            return 0.0
        names = sampled(context, number)
        near = {bits: min(rates, key=lambda b: (abs(b - bits), b)) for bits in set(context.bits.values())}
        return clock / spent * sum(rates[near[context.bits[name]]] * _images(context, name) for name in names)


def _images(context: Context, name: str) -> int:
    """Images that a client goes through in a round, batch by batch."""
    size = context.sizes.get(name, 0)
    return context.job(0, 1.0).steps_of(size) * context.task.batch(size)


def _all_take_part(context: Context) -> bool:
    return context.config.participants(len(context.bits)) >= len(context.bits)


__all__ = ["TimeLeft"]
