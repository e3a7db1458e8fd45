"""A client's work in one round: what the server asks of every client, and what the client contributes itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedqssl.config.schema import MAX_IMAGE_SIZE
from fedqssl.federated.task import Task
from fedqssl.lowbit.optim import Rule, ScalePolicy
from fedqssl.quant import Rounding

_ON_THE_WIRE = {"proximal": "mu", "return_model": "plainly"}
"""Fields that have kept an older name in messages."""


class JobError(ValueError):
    """A client cannot do this job; the message says why."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's own images and labels (if any), which it never sends."""

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
        algorithm: the algorithm whose client part is run.
        task: network, objective, batch size, seed.
        epochs: E; None if ``steps`` is given.
        rule: what a client stores for each weight.
        scale: how a layer's scale changes.
        rounding: of the weight update.
        proximal: FedProx's mu; ignored by other algorithms.
        return_model: reply with a model even if the algorithm sends something else.
        steps: steps of training, instead of epochs. Clients that do not know it refuse a job without epochs.
    """

    round_number: int
    lr: float
    algorithm: str
    task: Task
    epochs: int | None
    rule: Rule = "stored"
    scale: ScalePolicy = "round"
    rounding: Rounding = "stochastic"
    proximal: float = 0.0
    return_model: bool = False
    steps: int | None = None

    def steps_of(self, images: int) -> int:
        """Steps of a client with this many images."""
        return self.task.steps(images) * self.epochs if self.epochs is not None else self.steps or 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they travel."""
        return {_ON_THE_WIRE.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: object) -> Job:
        """Inverse of :meth:`to_json`, with validation: jobs come from another machine.

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
        lengths = [length for length in (job.epochs, job.steps) if length is not None]
        if len(lengths) != 1:
            raise JobError("the job needs a number of epochs or of steps, and not both")
        sized = 1 <= job.task.image_size <= MAX_IMAGE_SIZE and 0 <= job.task.momentum < 1
        if job.round_number < 0 or lengths[0] < 1 or job.task.batch_size < 2 or job.task.width < 1 or not sized:
            raise JobError("the job's numbers are out of range")
        return job


_ADAPTER = TypeAdapter(Job)


__all__ = ["ClientData", "Job", "JobError"]
