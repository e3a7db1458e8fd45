"""A small convolutional network for 32x32 images: what the smallest devices can afford."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedqssl.models.resnet import checked_width


class SmallCNN(nn.Module):
    """Four times convolution, batch norm, ReLU, halving the image three times; then global average pooling.

    Args:
        width: channels of the first convolution; the next have 2, 4 and 8 times as many.
        in_channels: 3 for colour images, 1 for grey ones.

    Weights are initialised like those of :class:`~fedqssl.models.resnet.ResNet`, for the same reason.
    """

    def __init__(self, width: int = 16, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        c_in = in_channels
        for i in range(4):
            c_out = checked_width(width) * 2**i
            conv = nn.Conv2d(c_in, c_out, 3, stride=1 if i == 0 else 2, padding=1, bias=False)
            nn.init.kaiming_uniform_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(c_out), nn.ReLU()]
            c_in = c_out
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.feature_dim = c_in

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, C, H, W) in [0, 1] to features (N, 8 * width)."""
        return torch.flatten(self.pool(self.layers(x)), 1)


def small_cnn(width: int = 16, in_channels: int = 3) -> SmallCNN:
    """Small CNN; 98 thousand weights at width 16."""
    return SmallCNN(width, in_channels)


__all__ = ["SmallCNN", "small_cnn"]
