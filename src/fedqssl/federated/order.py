"""What the server tells a client in a round, besides the model; the client adds its name, its bits and its images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.client import ClientMetrics, LocalJob, LocalSettings, local_update
from fedqssl.federated.task import Task
from fedqssl.lowbit.optim import Rule, ScalePolicy
from fedqssl.quant import Rounding


class OrderError(ValueError):
    """This is not an order that a client can carry out; the message says why."""


@dataclass(frozen=True, eq=False)
class Member:
    """A client's own part of a job: its name, its bits, its images and, if it has them, its labels."""

    name: str
    bits: int
    images: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class Order:
    """One round's work for a client; ``return_model``: reply with a model even if the algorithm sends something else."""

    round_number: int
    lr: float
    algorithm: str
    task: Task
    epochs: int
    rule: Rule = "stored"
    scale: ScalePolicy = "round"
    rounding: Rounding = "stochastic"
    mu: float = 0.0
    return_model: bool = False

    def job(self, member: Member) -> LocalJob:
        """This work on a client's own images; its labels go along only if the task is supervised."""
        settings = LocalSettings(member.bits, self.epochs, self.lr, self.rule, self.scale, self.rounding, self.mu)
        labels = member.labels if self.task.supervised else None
        return LocalJob(member.name, self.round_number, member.images, self.task, settings, labels)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object, *, trust: bool = False) -> Order:
        """Inverse of :meth:`to_json`, checked: orders come from another machine.

        A model of one's own (``package.module:Class``) would be imported: only with ``trust``.

        Raises:
            OrderError: one line that says what is wrong.
        """
        try:
            order = _ADAPTER.validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise OrderError(f"the order is not valid: {'.'.join(map(str, first['loc']))} {first['msg']}") from None
        if order.algorithm not in ALGORITHMS:
            raise OrderError(f"unknown algorithm {order.algorithm!r}; update fedqssl")
        if ":" in order.task.model and not trust:
            raise OrderError(f"the server wants the model {order.task.model!r} to be imported; allow that with --trust")
        if order.round_number < 0 or order.epochs < 1 or order.task.batch_size < 2 or order.task.width < 1:
            raise OrderError("the order's numbers are out of range")
        return order


_ADAPTER = TypeAdapter(Order)


def carry_out(order: Order, payload: bytes, member: Member) -> tuple[bytes, ClientMetrics]:
    """The client's part of the round."""
    algorithm = ALGORITHMS[order.algorithm]
    return_model = order.return_model and algorithm.upload is not None
    return (local_update if return_model else algorithm.client)(payload, order.job(member))
