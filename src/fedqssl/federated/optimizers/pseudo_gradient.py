"""Shared by the server's optimisers: the aggregate read as a step from the model before the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedqssl.federated.algorithms.base import Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.server_state import part_of, with_part
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic

Step = Callable[[dict[str, State], State], tuple[dict[str, State], State]]
"""(moments by name, d = w_agg - w) -> (the next moments, what is added to w)."""
MOMENTS = ("m", "v")


def with_step(server: Server, name: str, step: Step) -> Server:
    """A server whose aggregate is ``w + step(w_agg - w)``; moments are kept under ``name/`` in the server's state."""

    def stepped(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        kept = {moment: part_of(state, f"{name}/{moment}") for moment in MOMENTS}
        state, found = server(state, arrived, operators)
        if found.aggregate is None:
            raise ValueError(f"server.optimizer = {name!r} needs an algorithm that aggregates models")
        before = operators.before()
        d = {n: x - before[n] for n, x in found.aggregate.items() if n in before and not is_statistic(n)}
        moments, added = step({m: part for m, part in kept.items() if part}, d)
        for moment, part in moments.items():
            state = with_part(state, f"{name}/{moment}", part)
        moved = {n: before[n] + added[n] if n in added else x for n, x in found.aggregate.items()}
        return state, replace(found, aggregate=moved)

    return stepped


__all__ = ["Step", "with_step"]
