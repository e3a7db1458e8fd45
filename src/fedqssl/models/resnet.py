"""CIFAR ResNets (He et al. 2016) with a width: a 3x3 stem, no max-pool, four stages, global average pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=kernel // 2, bias=False)


def checked_width(width: int) -> int:
    """``width`` if a network can have it."""
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    return width


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: ``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(c_in, c_out, 3, stride)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv(c_out, c_out, 3)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(_conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C_in, H, W) to (N, C_out, H/stride, W/stride)."""
        out = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(out)) + self.shortcut(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A CIFAR ResNet; ``forward`` returns pooled features, or logits when ``num_classes`` is given.

    Args:
        blocks: number of basic blocks in each of the four stages.
        width: channels of the first stage; the stages have 1, 2, 4 and 8 times as many.
        num_classes: adds a linear classifier; without it the model is a feature extractor.
        in_channels: 3 for colour images, 1 for grey ones.

    Weights start from He's uniform distribution: its largest entry is only 1.7 standard deviations away, so that
    a grid over ``[-max, max]`` spends its few levels where the weights are.
    """

    def __init__(
        self, blocks: Sequence[int], width: int = 64, num_classes: int | None = None, in_channels: int = 3
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, checked_width(width), 3)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        c_in = width
        stages = []
        for i, count in enumerate(blocks):
            c_out = width * 2**i
            strides = [1 if i == 0 else 2] + [1] * (count - 1)
            stage = []
            for stride in strides:
                stage.append(BasicBlock(c_in, c_out, stride))
                c_in = c_out
            stages.append(nn.Sequential(*stage))
        self.layers = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.feature_dim = c_in
        self.classifier = nn.Linear(c_in, num_classes) if num_classes is not None else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, C, H, W) in [0, 1] to features (N, 8 * width) or logits (N, num_classes)."""
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.layers(x)
        x = torch.flatten(self.pool(x), 1)
        return self.classifier(x)  # type: ignore[no-any-return]


def resnet18(width: int = 64, num_classes: int | None = None, in_channels: int = 3) -> ResNet:
    """CIFAR ResNet-18; 11.2 million weights at width 64, 0.7 million at width 16."""
    return ResNet((2, 2, 2, 2), width, num_classes, in_channels)


def resnet34(width: int = 64, num_classes: int | None = None, in_channels: int = 3) -> ResNet:
    """CIFAR ResNet-34; 21.3 million weights at width 64."""
    return ResNet((3, 4, 6, 3), width, num_classes, in_channels)


def projector(dim_in: int, dim_hidden: int = 128, dim_out: int = 128) -> nn.Sequential:
    """SimCLR's projection head: linear, batch norm, ReLU, linear."""
    return nn.Sequential(
        nn.Linear(dim_in, dim_hidden, bias=False),
        nn.BatchNorm1d(dim_hidden),
        nn.ReLU(),
        nn.Linear(dim_hidden, dim_out),
    )
