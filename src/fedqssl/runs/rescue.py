"""A round whose aggregate cannot be used: first without the uploads that stand out most, then not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from fedqssl.federated.algorithms import Arrived
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.server.usable import UnusableAggregateError
from fedqssl.federated.state import State
from fedqssl.lowbit import NonFiniteError

UNUSABLE = (NonFiniteError, NothingToAggregateError, UnusableAggregateError)
"""What a server part raises if its clients' models do not make a model."""
SUSPECTS = 4
"""Clients that may be left out: every attempt takes as long as the server's part of a round."""

T = TypeVar("T")


def without_culprits(
    play: Callable[[Arrived], T], arrived: Arrived, change_of: Callable[[str], float], least: int
) -> tuple[T | None, dict[str, str], str | None]:
    """The outcome of a round, the clients that had to be left out for it, and why there is no outcome.

    If all uploads together are of no use, each of the clients that changed most is left out alone, then they are left out
    together, as long as ``least`` remain. The first attempt that succeeds counts.
    """
    try:
        return play(arrived), {}, None
    except UNUSABLE as error:
        why = str(error)
    for out in _attempts({name: change_of(name) for name in arrived.payloads}, len(arrived.payloads) - max(least, 1)):
        rest = {name: payload for name, payload in arrived.payloads.items() if name not in out}
        try:
            return play(replace(arrived, payloads=rest)), dict.fromkeys(out, f"{why}; without it, it can be used"), None
        except UNUSABLE:
            continue
    return None, {}, why


def _attempts(changes: Mapping[str, float], most: int) -> Iterator[tuple[str, ...]]:
    """Whom to leave out, in order: single suspects, then the first two, three, ... of them."""
    suspects = sorted(changes, key=lambda name: (-changes[name], name))[:SUSPECTS]
    if most >= 1:
        yield from ((name,) for name in suspects)
    for count in range(2, min(most, len(suspects)) + 1):
        yield tuple(suspects[:count])


def change(received: State, found: State) -> float:
    """How much a client changed: the largest ``|x - r| / |r|`` of its tensors; what was zero counts as if it had length 1."""
    lengths = [(float((x - received[n]).norm()), float(received[n].norm())) for n, x in found.items() if n in received]
    return max((moved / (before or 1.0) for moved, before in lengths), default=0.0)


__all__ = ["UNUSABLE", "change", "without_culprits"]
