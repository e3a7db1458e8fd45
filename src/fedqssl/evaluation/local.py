"""A client's own classifier: an s-bit linear layer on its frozen s-bit extractor (PAPER-TO-CODE, section 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedqssl.lowbit import LowBitOptions, LowBitSGD, Precision, to_lowbit

SPREAD = 10.0
"""Weights start within ``SPREAD / sqrt(d)``, ten times as wide as usual: the layer's scale is fixed, so this is also the
largest value they can reach, and a classifier on features in [0, 1] needs large weights."""


@dataclass(frozen=True, eq=False)
class LowBitClassifier:
    """An s-bit linear layer with the float that features are divided by first."""

    model: fx.GraphModule
    scale: float

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        out: Tensor = self.model(features / torch.tensor(self.scale))
        return out

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """Share of these features whose largest logit is their label's."""
        return float((self.logits(features).argmax(1) == labels).double().mean())


def empty_classifier(dim: int, num_classes: int, precision: Precision) -> fx.GraphModule:
    """The classifier's architecture; its weights are zero."""
    return _lowbit_linear(torch.zeros(num_classes, dim), precision)


def _lowbit_linear(weight: Tensor, precision: Precision) -> fx.GraphModule:
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.zero_()
    return to_lowbit(linear, precision, LowBitOptions(quantize_input=False))


def fit_lowbit_classifier(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    bits: int,
    *,
    seed: int = 0,
    epochs: int = 40,
    batch_size: int = 64,
    lr: float = 8.0,
) -> LowBitClassifier:
    """Train a linear classifier with s-bit weights, inputs and (s+2)-bit gradients on cached features; deterministic.

    Features are divided by one number, their largest absolute value in the training set (a float scale, like those of layers).
    """
    scale = x.abs().max().clamp(min=1e-12)
    generator = torch.Generator().manual_seed(seed)
    bound = SPREAD / math.sqrt(x.shape[1])
    start = torch.empty(num_classes, x.shape[1]).uniform_(-bound, bound, generator=generator)
    model = _lowbit_linear(start, Precision.for_bits(bits))
    opt = LowBitSGD(model, lr, scale="round", seed=seed)
    x = x / scale
    steps = max(len(x) // batch_size, 1)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for i in range(steps):
            for group in opt.param_groups:  # codes, and the bias
                group["lr"] = 0.5 * lr * (1 + math.cos(math.pi * (epoch * steps + i) / (epochs * steps)))
            index = order[i * batch_size : (i + 1) * batch_size]
            torch.autograd.backward(F.cross_entropy(model(x[index]), y[index]))
            opt.step()
    model.eval()
    return LowBitClassifier(model, float(scale))


__all__ = ["LowBitClassifier", "empty_classifier", "fit_lowbit_classifier"]
