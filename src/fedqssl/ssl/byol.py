"""Momentum targets: BYOL, which predicts what a slowly moving copy of the network says of the other view.

Grill et al., "Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning", NeurIPS 2020.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx

from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.quant.compand import IDENTITY, compand_pack, levels
from fedqssl.ssl.simsiam import SimSiamHeads, simsiam_loss


def byol_loss(p: Tensor, z: Tensor) -> Tensor:
    """Squared distance between the unit prediction from one view and the target's unit projection of the other (their Eq. 2).

    Taken over both views of every image::

        L = 1/2N sum_i | p_i / |p_i| - t_q(i) / |t_q(i)| |^2      q(i) = i + N mod 2N, the other view of the same image

    Args:
        p: predictions (2N, d) of the network; rows i and i + N are the two views of image i.
        z: t, projections (2N, d) of the target network, in the same order; they get no gradient.

    Returns:
        The mean loss, a scalar in [0, 4].

    Example:
        >>> import torch
        >>> z = torch.eye(2).repeat(2, 1)  # two images, both views equal
        >>> byol_loss(-z, z).item()
        4.0
    """
    return 2 + 2 * simsiam_loss(p, z)  # |a - b|^2 = 2 - 2 a.b of unit vectors


def byol_heads(dim_in: int) -> SimSiamHeads:
    """Projector and predictor, from features to ``[z, p]``; the predictor is as wide as the projector.

    Unlike the paper's, the projector ends in a batch norm, as SimSiam's: so all scales of the target's codes stay as they are.
    """
    return SimSiamHeads(dim_in, dim_predictor=128)


def against_target(outputs: Tensor, target: Tensor) -> Tensor:
    """``[t, p]`` for the loss, from the network's ``[z, p]`` and its target's ``[t, p']``; (2N, 2d) each."""
    dim = outputs.shape[1] // 2
    return torch.cat([target[:, :dim], outputs[:, dim:]], 1)


class TargetNetwork:
    """A copy of a network, in the network's own bits, that follows it: ``xi <- m xi + (1 - m) theta`` (their Eq. 1).

    Floats move by that formula. Codes do so in expectation: their levels are averaged and rounded stochastically, so a code that
    is one step behind catches up with probability 1 - m. Scales stay those of the first copy: a grid that moves would add
    rounding noise to every code in every step. Batch norm uses the batch's own statistics, as in training.

    Args:
        model: a network from ``to_lowbit``, in training mode; the target starts as its copy.
        momentum: m, in [0, 1); 0 is the network itself (SimSiam's target).
    """

    def __init__(self, model: fx.GraphModule, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {momentum}")
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def __call__(self, views: Tensor) -> Tensor:
        """The target's outputs, without gradient."""
        outputs: Tensor = self.model(views)
        return outputs

    @torch.no_grad()
    def follow(self, model: fx.GraphModule, generator: torch.Generator) -> None:
        """One step towards the model; ``generator`` is for stochastic rounding."""
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.momentum)
        for weight, trained in zip(_weights(self.model), _weights(model), strict=True):
            y = self.momentum * _companded(weight) + (1 - self.momentum) * _companded(trained)
            weight.store(compand_pack(y, weight.bits, weight.m, IDENTITY, "stochastic", generator=generator), weight.m)

    @property
    def nbytes(self) -> int:
        """Bytes that the target holds: packed codes, scales, floats."""
        held = (*self.model.parameters(), *self.model.buffers())
        return sum(t.numel() * t.element_size() for t in held)


def _weights(model: fx.GraphModule) -> list[LowBitWeight]:
    return [module for module in model.modules() if isinstance(module, LowBitWeight)]


def _companded(weight: LowBitWeight) -> Tensor:
    """``m l`` of every code, in float64."""
    return weight.m * levels(weight.bits, weight.codes.device)[weight.unpacked().long()]


__all__ = ["TargetNetwork", "against_target", "byol_heads", "byol_loss"]
