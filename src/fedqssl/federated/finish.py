"""The end of a server round: the aggregate is checked, handed out in every client's bits, and written as it travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from fedqssl.federated.algorithms.base import Round
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.server.usable import check_usable
from fedqssl.federated.state import State, write_state
from fedqssl.federated.task import Task
from fedqssl.lowbit import to_bytes


@dataclass(frozen=True, eq=False)
class Finished:
    """The next models to send, the model that training continues from as it travels, and the model to evaluate."""

    payloads: Mapping[str, bytes]
    aggregated: bytes
    served: fx.GraphModule


def full_precision(task: Task, state: State) -> fx.GraphModule:
    """The task's model without rounding, with this state."""
    model = task.converted(32)
    write_state(model, state)
    return model


def finished(found: Round, operators: ServerOperators) -> Finished:
    """Check and hand out a round's aggregate; after the last round, the served model replaces it.

    Raises:
        UnusableAggregateError: the aggregate is not finite, or has collapsed.
    """
    context = operators.context
    assert found.aggregate is not None and found.hand_out is not None, "an aggregate is returned with its hand_out"
    check_usable(found.aggregate, operators.before(), context.buffer(), context.task)
    served = found.aggregate if found.served is None else found.served
    w = served if operators.is_last else found.aggregate
    payloads = found.hand_out(w)
    model = full_precision(context.task, served)
    return Finished(payloads, to_bytes(model if w is served else full_precision(context.task, w)), model)


__all__ = ["Finished", "finished", "full_precision"]
