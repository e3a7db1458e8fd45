"""Backbones of a user's own, for exports: ``own_networks:Odd``."""

import torch
from torch import nn


class Odd(nn.Module):
    """Sizes that divide nothing, a bias, max pooling, an activation without batch norm, a hidden linear layer."""

    def __init__(self, in_channels: int = 3):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(in_channels, 5, 5, 2, 2, bias=True), nn.BatchNorm2d(5), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.second = nn.Sequential(nn.Conv2d(5, 7, (1, 3), bias=True), nn.ReLU())
        self.last = nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.BatchNorm1d(9), nn.ReLU())
        self(torch.zeros(2, in_channels, 29, 29))

    def forward(self, x):
        return self.last(self.second(self.pool(self.first(x))))


class Grouped(nn.Module):
    """A depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.deep = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4)
        self.one, self.two, self.act = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        x = self.act(self.one(self.conv(x)))
        return torch.flatten(nn.functional.adaptive_avg_pool2d(self.act(self.two(self.deep(x))), 1), 1)


class Shuffled(nn.Module):
    """A layer that the C export does not know."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act, self.odd = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.PixelShuffle(2)

    def forward(self, x):
        return self.odd(self.act(self.bn(self.conv(x)))).flatten(1)
