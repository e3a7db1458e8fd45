"""The same functions at full precision ("32 bits"): nothing is rounded, everything else is as in the low-bit layers.

The server, and clients without a bitwidth limit, compute with these; their gradients are plain autograd's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedqssl.lowbit.precision import LowBitOptions
from fedqssl.quant.compand import COMPANDERS


def effective_weight(x: Tensor, options: LowBitOptions, absorbed: bool) -> Tensor:
    """What a parameter x enters a convolution as: ``c(x)/max|c(x)|`` for ``level``, ``c(x)`` without batch norm, else x."""
    if options.weights == "value":
        return x
    y = COMPANDERS[options.compander].forward(x)
    if not absorbed:
        return y
    m = y.detach().abs().amax()
    return y / torch.where(m > 0, m, 1.0)  # not a question to the host, who would wait for a GPU


class FullConv2d(nn.Conv2d):
    """``nn.Conv2d`` on the effective weight of its parameters."""

    options: LowBitOptions
    absorbed: bool

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the effective weight."""
        weight = effective_weight(self.weight, self.options, self.absorbed)
        return self._conv_forward(x, weight, self.bias)  # type: ignore[no-any-return]


class FullLinear(nn.Linear):
    """``nn.Linear`` on the effective weight of its parameters."""

    options: LowBitOptions
    absorbed: bool

    def forward(self, x: Tensor) -> Tensor:
        """Multiply with the effective weight."""
        return F.linear(x, effective_weight(self.weight, self.options, self.absorbed), self.bias)


def to_full(layer: nn.Conv2d | nn.Linear, options: LowBitOptions, absorbed: bool) -> nn.Module:
    """Give a torch layer the low-bit layers' reading of weights, keeping its parameters."""
    full: FullConv2d | FullLinear
    if isinstance(layer, nn.Conv2d):
        full = FullConv2d.__new__(FullConv2d)
    else:
        full = FullLinear.__new__(FullLinear)
    full.__dict__.update(layer.__dict__)
    full.options, full.absorbed = options, absorbed
    return full


class ClippedReLU(nn.Module):
    """``c h(z) = clip(z, 0, c)``, or ``tanh(relu(z))``: the low-bit activation without rounding."""

    def __init__(self, options: LowBitOptions) -> None:
        super().__init__()
        self.options = options

    def forward(self, z: Tensor) -> Tensor:
        """Apply to floats."""
        if self.options.activation_quantizer == "tanh":
            return z.relu().tanh()
        return F.hardtanh(z, 0.0, self.options.activation_clip)  # no gradient at either end, as in the low-bit layers
