"""Everything about one bitwidth: container, formulas, and, if asked for, measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from fedqssl.cost.amounts import BitOperations, Memory
from fedqssl.cost.measure import MeasuredStep, Say, measure_step, silent
from fedqssl.cost.objective import objective_cost
from fedqssl.cost.step import step_memory, step_operations
from fedqssl.cost.trace import Trace, trace
from fedqssl.cost.training import Training
from fedqssl.cost.wire import Wire, wire

Upload = Callable[[fx.GraphModule, int], bytes]
"""What a client sends for a model in this many bits."""


@dataclass(frozen=True, eq=False)
class Bitwidth:
    """The training of one network in one bitwidth.

    Args:
        bits: s, or 32.
        training: what is trained.
        wire: the initial model's container, which the server sends.
        upload: bytes that a client sends.
        trace: the layers' shapes and bits.
        rule: what a client keeps per weight.
        measured: one step on this machine, or None.
    """

    bits: int
    training: Training
    wire: Wire
    upload: int
    trace: Trace
    rule: str = "stored"
    measured: MeasuredStep | None = None

    def operations(self, images: int) -> BitOperations:
        """Bit operations of a step on ``images`` images, by formula."""
        views = images * self.training.views
        return step_operations(self.trace, views, objective_cost(self.training.loss, views, self.trace.outputs))

    def forward_operations(self, images: int) -> int:
        """Bit operations of the layers in a pass without update."""
        return self.operations(images).forward

    def memory(self, images: int) -> Memory:
        """Memory of a step on ``images`` images, by formula."""
        views = images * self.training.views
        return step_memory(self.trace, views, self.rule, objective_cost(self.training.loss, views, self.trace.outputs))


def study(
    training: Training,
    bits: int,
    rule: str = "stored",
    measure_seconds: float | None = None,
    say: Say = silent,
    warm: bool = True,
    upload: Upload | None = None,
) -> Bitwidth:
    """Convert the network to ``bits``, pack it, trace it, and time a step if ``measure_seconds`` allows some.

    ``warm``: run an untimed step first, for what a process does only once. ``upload``: of an algorithm whose clients do not send
    their model's container.
    """
    say("converting the network")
    model = training.converted(bits)
    buffer, layers = wire(model), trace(model, training.image)
    measured = measure_step(model, training, rule, measure_seconds, say, warm) if measure_seconds else None
    sent = buffer.total if upload is None else len(upload(model, bits))
    return Bitwidth(bits, training, buffer, sent, layers, rule, measured)


__all__ = ["Bitwidth", "Upload", "study"]
