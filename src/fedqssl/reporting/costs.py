"""The cost ledger of a run, reduced to what the report shows; without one the report says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedqssl.config.load import code_of
from fedqssl.reporting.data import RunData
from fedqssl.reporting.theme import FULL


@dataclass(frozen=True)
class Amounts:
    """Of one bitwidth, or of full precision: bit operations of a step, memory of a step, bytes of the model."""

    operations: int
    memory: int
    model: int


@dataclass(frozen=True)
class Costs:
    """What the run costs and what it would cost at full precision.

    Args:
        batch: images in a step.
        amounts: by bitwidth, 32 last.
        operations: the clients' bit operations in all rounds, here and at full precision.
        traffic: bytes both ways in all rounds, here and at full precision.
        server_operations: the server's bit operations in all rounds.
        note: what was assumed; empty if nothing was.
    """

    batch: int
    amounts: Mapping[int, Amounts]
    operations: tuple[int, int]
    traffic: tuple[int, int]
    server_operations: int
    note: str = ""


def costs(run: RunData) -> Costs | str:
    """The ledger by formula, for the images that the run's clients hold; a sentence if it cannot be made."""
    named = code_of(run.config)
    if named and not run.trust:
        return f"There is no ledger for this run: it names the code {named[0]}, which is imported only with --trust."
    try:
        return _costs(run)
    except Exception as error:  # the ledger builds the model, which may be a user's own class: anything can happen
        return f"There is no ledger for this run: {type(error).__name__}: {' '.join(str(error).split())}"


def _costs(run: RunData) -> Costs:
    from fedqssl.cost import Sizes, ledger

    side = run.config.image_size
    image = run.image or (1 if run.config.data == "digits" else 3, side, side)
    sizes = Sizes(run.train, run.buffer, image, classes=run.classes or 10)
    found = ledger(run.config, sizes)
    batch = run.config.batch_size

    def amounts(bits: int) -> Amounts:
        width = found.bitwidths[bits]
        return Amounts(width.operations(batch).total, width.memory(batch).total, width.wire.total)

    ours, full = found.total(), found.total(full=True)
    return Costs(
        batch=batch,
        amounts={bits: amounts(bits) for bits in sorted({*found.bitwidths, FULL})},
        operations=(ours.operations.total, full.operations.total),
        traffic=(ours.bytes_down + ours.bytes_up, full.bytes_down + full.bytes_up),
        server_operations=ours.server_operations,
        note=found.sizes.note,
    )


__all__ = ["Amounts", "Costs", "costs"]
