"""A client's work in one round: what the server asks of every client, and what the client brings itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedqssl.federated.task import Task
from fedqssl.lowbit.optim import Rule, ScalePolicy
from fedqssl.quant import Rounding

_ON_THE_WIRE = {"proximal": "mu", "return_model": "plainly"}
"""Fields whose names in messages are older than their names here."""


class JobError(ValueError):
    """A client cannot do this job; the message says why."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """What a client brings to a job and never sends: its images and, if it has them, its labels."""

    name: str
    bits: int
    images: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class Job:
    """What the server asks of every client in a round.

    Args:
        round_number: from 0.
        lr: learning rate of the round.
        algorithm: whose client part is run.
        task: network, objective, batch size, seed.
        epochs: E.
        rule: what a client keeps per weight.
        scale: what a layer's scale does.
        rounding: of the weight update.
        proximal: FedProx's mu; no other algorithm looks at it.
        return_model: reply with a model even if the algorithm sends something else.
    """

    round_number: int
    lr: float
    algorithm: str
    task: Task
    epochs: int
    rule: Rule = "stored"
    scale: ScalePolicy = "round"
    rounding: Rounding = "stochastic"
    proximal: float = 0.0
    return_model: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they travel."""
        return {_ON_THE_WIRE.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: object) -> Job:
        """Inverse of :meth:`to_json`, checked: jobs come from another machine.

        Raises:
            JobError: one line that says what is wrong.
        """
        here = {on_the_wire: name for name, on_the_wire in _ON_THE_WIRE.items()}
        if isinstance(values, dict):
            values = {here.get(name, name): value for name, value in values.items()}
        try:
            job = _ADAPTER.validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise JobError(f"the job is not valid: {'.'.join(map(str, first['loc']))} {first['msg']}") from None
        if job.round_number < 0 or job.epochs < 1 or job.task.batch_size < 2 or job.task.width < 1:
            raise JobError("the job's numbers are out of range")
        return job


_ADAPTER = TypeAdapter(Job)


__all__ = ["ClientData", "Job", "JobError"]
