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
        d = step_from(before, found.aggregate)
        moments, added = step({m: part for m, part in kept.items() if part}, d)
        for moment, part in moments.items():
            state = with_part(state, f"{name}/{moment}", part)
        return state, replace(found, aggregate=added_to(before, added, found.aggregate))

    return stepped


def step_from(before: State, w: State) -> State:
    """``w - before`` of everything that is optimised."""
    return {n: x - before[n] for n, x in w.items() if n in before and not is_statistic(n)}


def added_to(before: State, step: State, aggregate: State) -> State:
    """``before + step``, with the aggregate's statistics."""
    return {n: before[n] + step[n] if n in step else x for n, x in aggregate.items()}


__all__ = ["Step", "added_to", "step_from", "with_step"]
