"""A 9-layer ResNet for CPUs: few layers at full resolution, so that a minute of training holds many steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedqssl.models.resnet import BasicBlock, checked_width


def _conv_norm_relu(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU())


class ResNet9(nn.Module):
    """Four convolutions, a residual pair after the second and the fourth, global average pooling.

    Channels and sides for an image of side S: ``w, S``; ``2w, S/2`` and its pair; ``4w, S/4``; ``8w, S/8`` and its pair.
    Nothing works at full resolution but the first convolution, which is where deeper ResNets spend most of their time.

    Args:
        width: w, channels of the first convolution.
        in_channels: 3 for colour images, 1 for grey ones.

    Weights start as those of :class:`~fedqssl.models.resnet.ResNet`, and for the same reason.
    """

    def __init__(self, width: int = 16, in_channels: int = 3) -> None:
        super().__init__()
        w = checked_width(width)
        self.layers = nn.Sequential(
            _conv_norm_relu(in_channels, w, 1),
            _conv_norm_relu(w, 2 * w, 2),
            BasicBlock(2 * w, 2 * w, 1),
            _conv_norm_relu(2 * w, 4 * w, 2),
            _conv_norm_relu(4 * w, 8 * w, 2),
            BasicBlock(8 * w, 8 * w, 1),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.feature_dim = 8 * w
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, C, H, W) in [0, 1] to features (N, 8 * width)."""
        return torch.flatten(self.pool(self.layers(x)), 1)


def resnet9(width: int = 16, in_channels: int = 3) -> ResNet9:
    """9-layer ResNet; 0.41 million weights at width 16, 1.64 million at 32."""
    return ResNet9(width, in_channels)


__all__ = ["ResNet9", "resnet9"]
