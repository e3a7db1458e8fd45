"""What is trained, as the ledger needs it: the network, its loss, and how batches are cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedqssl.config import RunConfig
from fedqssl.cost.objective import Loss
from fedqssl.lowbit import LowBitOptions, Precision, to_lowbit
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model
from fedqssl.ssl.objectives import get_objective
from fedqssl.ssl.views import two_views

SUPERVISED = "supervised"
"""Objective of the supervised baselines: cross-entropy of a linear classifier in the heads' place."""

Views = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Training:
    """One kind of training step.

    Args:
        network: the float network, heads included.
        loss: of its output.
        image: (C, H, W).
        options: how it is made low-bit.
        batch_size: images in a full batch.
        views: views of each image that enter the network.
        make_views: uint8 images (N, C, H, W) and a generator -> floats (views * N, C, H, W).
    """

    network: nn.Module
    loss: Loss
    image: tuple[int, int, int]
    options: LowBitOptions = field(default_factory=LowBitOptions)
    batch_size: int = 128
    views: int = 2
    make_views: Views = two_views

    def converted(self, bits: int) -> fx.GraphModule:
        """The network in this many bits."""
        return to_lowbit(self.network, Precision.for_bits(bits), self.options)

    def batch(self, images: int) -> int:
        """Images in a step of someone who holds ``images``: a full batch, or all of fewer."""
        return min(self.batch_size, images)

    def steps(self, images: int) -> int:
        """Steps of an epoch: full batches only; fewer images than a batch make one step."""
        return max(images // self.batch_size, 1)


def training_of(
    config: RunConfig, image: tuple[int, int, int] = (3, 32, 32), objective: str | None = None, classes: int = 10
) -> Training:
    """The training that a configuration asks for.

    Args:
        config: model, batch, temperature, low-bit readings.
        image: (C, H, W).
        objective: in place of the configuration's; an algorithm may have its own, ``supervised`` among them.
        classes: of the supervised objective's linear classifier.
    """
    name = objective or config.objective
    with torch.random.fork_rng():
        torch.manual_seed(config.seed % 2**63)
        encoder = build_model(config.model, config.width, image[0])
        dim = int(encoder.feature_dim)  # type: ignore[arg-type]
        heads = nn.Linear(dim, classes) if name == SUPERVISED else get_objective(name).heads(dim)
    network = SelfSupervisedNetwork(encoder, heads)
    options = LowBitOptions(weights=config.lowbit.weights, activation_clip=config.lowbit.activation_clip)
    return Training(network, _loss(name, config.ssl.temperature), image, options, config.batch_size)


def _loss(objective: str, temperature: float) -> Loss:
    if objective == SUPERVISED:
        return lambda z: F.cross_entropy(z, torch.zeros(len(z), dtype=torch.int64, device=z.device))
    loss = get_objective(objective).loss
    return lambda z: loss(z, temperature)


__all__ = ["Training", "training_of"]
