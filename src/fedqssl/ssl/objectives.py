"""Self-supervised objectives by name: each brings the heads it needs and the loss of their output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fedqssl.imported import nearest
from fedqssl.models.resnet import projector
from fedqssl.ssl.byol import against_target, byol_heads, byol_loss
from fedqssl.ssl.dcl import dcl
from fedqssl.ssl.simclr import nt_xent
from fedqssl.ssl.simsiam import SimSiamHeads, simsiam_loss
from fedqssl.ssl.vicreg import expander, vicreg


@dataclass(frozen=True)
class Objective:
    """A self-supervised objective.

    Args:
        name: its name in configurations.
        description: one line for ``fedqssl list objectives``.
        heads: feature dimension -> a module from features (2N, dim) to one tensor (2N, d); rows i and i + N are the two views of
            image i. Encoder and heads are converted together.
        loss: (output of the heads, temperature) -> scalar.
        against: for objectives with a target network (:class:`fedqssl.ssl.byol.TargetNetwork`): (output of the heads, that of the
            target's) -> what the loss reads. Where nothing is trained, the loss reads the heads' own output.
    """

    name: str
    description: str
    heads: Callable[[int], nn.Module]
    loss: Callable[[Tensor, float], Tensor]
    against: Callable[[Tensor, Tensor], Tensor] | None = None


def _simsiam(outputs: Tensor, temperature: float) -> Tensor:
    z, p = outputs.chunk(2, dim=1)
    return simsiam_loss(p, z)


def _byol(outputs: Tensor, temperature: float) -> Tensor:
    z, p = outputs.chunk(2, dim=1)
    return byol_loss(p, z)


def _vicreg(outputs: Tensor, temperature: float) -> Tensor:
    return vicreg(outputs)


OBJECTIVES: dict[str, Objective] = {
    entry.name: entry
    for entry in (
        Objective("simclr", "InfoNCE over the batch's other images (the paper's)", projector, nt_xent),
        Objective(
            "simsiam", "prediction of the other view, no negatives; ignores ssl.temperature", SimSiamHeads, _simsiam
        ),
        Objective("dcl", "InfoNCE without the positive pair in its denominator", projector, dcl),
        Objective(
            "vicreg", "spread and uncorrelated features, no negatives; ignores ssl.temperature", expander, _vicreg
        ),
        Objective(
            "byol",
            "prediction of what a slowly moving copy says of the other view (ssl.momentum); ignores ssl.temperature",
            byol_heads,
            _byol,
            against_target,
        ),
    )
}


def get_objective(name: str) -> Objective:
    """The objective of this name.

    Raises:
        ValueError: with the nearest name and all names.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}{nearest(name, OBJECTIVES)} (objectives: {', '.join(OBJECTIVES)})")
    return OBJECTIVES[name]


__all__ = ["OBJECTIVES", "Objective", "get_objective"]
