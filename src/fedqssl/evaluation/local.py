"""A client's own classifier: an s-bit linear layer on its frozen s-bit extractor (PAPER-TO-CODE, section 8)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedqssl.lowbit import LowBitOptions, LowBitSGD, Precision, to_lowbit


def lowbit_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    num_classes: int,
    bits: int,
    *,
    seed: int = 0,
    epochs: int = 40,
    batch_size: int = 64,
    lr: float = 0.5,
) -> float:
    """Accuracy of a linear classifier with s-bit weights, inputs and (s+2)-bit gradients, trained on cached features.

    Features are divided by one number, their largest size in the training set (a float scale, like those of the layers).
    """
    scale = train_x.abs().max().clamp(min=1e-12)
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(train_x.shape[1], num_classes)
    with torch.no_grad():
        bound = 1 / math.sqrt(train_x.shape[1])
        linear.weight.uniform_(-bound, bound, generator=generator)
        linear.bias.zero_()
    model = to_lowbit(linear, Precision.for_bits(bits), LowBitOptions(quantize_input=False))
    opt = LowBitSGD(model, lr, seed=seed)
    x = train_x / scale
    steps = max(len(x) // batch_size, 1)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for i in range(steps):
            opt.param_groups[0]["lr"] = 0.5 * lr * (1 + math.cos(math.pi * (epoch * steps + i) / (epochs * steps)))
            index = order[i * batch_size : (i + 1) * batch_size]
            torch.autograd.backward(F.cross_entropy(model(x[index]), train_y[index]))
            opt.step()
    model.eval()
    with torch.no_grad():
        return float((model(test_x / scale).argmax(1) == test_y).float().mean())
