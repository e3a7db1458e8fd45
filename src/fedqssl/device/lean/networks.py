"""The backbones by name, as :mod:`fedqssl.models` defines them, and the kinds of features; tensors carry the same names.

A file names its backbone and holds no graph, so each is written down a second time here. The file's fingerprint, a hash of
the names and shapes of all its tensors, is compared: an architecture that differs is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedqssl.device.framing import DeviceFileError
from fedqssl.device.lean.layers import Activation, Conv, Kernels, Norm, Weight
from fedqssl.device.lean.tensors import Array, Container

Layer = Callable[[Activation], Activation]

FEATURE_PARTS = {"grid2": ((0, 2),), "stages": ((0, 1), (2, 4)), "pyramid": ((0, 1), (2, 4), (2, 8))}
"""Parts of the features: a stage counted from the end, averaged over a grid of so many cells a side."""


class Network:
    """A backbone under construction, and then in use: its layers in order, with what they leave at every size of the maps."""

    def __init__(self, container: Container, kernels: Kernels) -> None:
        self.container, self.kernels = container, kernels
        self.weights: list[Weight] = []
        self.layers: list[Layer] = []
        self.ends: dict[int, Activation] = {}

    def conv(self, name: str, c_in: int, c_out: int, stride: int, kernel: int = 3) -> Conv:
        """A convolution that a batch norm follows."""
        weight = Weight(self.container, f"{name}.weight", (c_out, c_in, kernel, kernel), True, self.kernels)
        self.weights.append(weight)
        return Conv(weight, stride)

    def norm(self, name: str, channels: int, activate: bool = True) -> Norm:
        """A batch norm, with the activation behind it or without."""
        return Norm(self.container, name, channels, activate, self.kernels)

    def noted(self, x: Activation) -> Activation:
        """Remember the last activation at every size of the maps; the order is that of the sizes' first appearance."""
        self.ends[x.shape[2]] = x
        return x

    def conv_norm_relu(self, conv: str, norm: str, c_in: int, c_out: int, stride: int) -> None:
        """Append convolution, batch norm and activation."""
        first, second = self.conv(conv, c_in, c_out, stride), self.norm(norm, c_out)
        self.layers.append(lambda x: self.noted(second(first(x))))

    def block(self, name: str, c_in: int, c_out: int, stride: int) -> None:
        """Append ``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``."""
        conv1, bn1 = self.conv(f"{name}.conv1", c_in, c_out, stride), self.norm(f"{name}.bn1", c_out)
        conv2, bn2 = self.conv(f"{name}.conv2", c_out, c_out, 1), self.norm(f"{name}.bn2", c_out)
        shortcut: Callable[[Activation], Activation] = lambda x: x  # noqa: E731
        if stride != 1 or c_in != c_out:
            side = self.conv(f"{name}.shortcut.0", c_in, c_out, stride, kernel=1)
            side_norm = self.norm(f"{name}.shortcut.1", c_out, activate=False)
            shortcut = lambda x: side_norm(side(x))  # noqa: E731

        def layer(x: Activation) -> Activation:
            inner = self.noted(bn1(conv1(x)))
            return self.noted(bn2(conv2(inner), shortcut(x)))

        self.layers.append(layer)

    def __call__(self, pixels: Array) -> Activation:
        """Pixels (N, H, W, C), uint8, to the last maps."""
        self.ends = {}
        x = Activation(pixels, None, 1.0 / 255)
        for layer in self.layers:
            x = layer(x)
        return x


def _small_cnn(net: Network, width: int, channels: int) -> int:
    c_in = channels
    for i in range(4):
        c_out = width * 2**i
        names = f"encoder.layers.{3 * i}", f"encoder.layers.{3 * i + 1}"
        net.conv_norm_relu(*names, c_in, c_out, 1 if i == 0 else 2)
        c_in = c_out
    return c_in


def _resnet9(net: Network, width: int, channels: int) -> int:
    c_in = channels
    for at, (factor, stride) in enumerate(
        ((1, 1), (2, 2), (2, 0), (4, 2), (8, 2), (8, 0))
    ):  # stride 0: a residual pair
        name, c_out = f"encoder.layers.{at}", factor * width
        if stride:
            net.conv_norm_relu(f"{name}.0", f"{name}.1", c_in, c_out, stride)
        else:
            net.block(name, c_in, c_out, 1)
        c_in = c_out
    return c_in


def _resnet(blocks: tuple[int, ...]) -> Callable[[Network, int, int], int]:
    def build(net: Network, width: int, channels: int) -> int:
        net.conv_norm_relu("encoder.conv1", "encoder.bn1", channels, width, 1)
        c_in = width
        for i, count in enumerate(blocks):
            for j in range(count):
                net.block(f"encoder.layers.{i}.{j}", c_in, width * 2**i, 2 if i and not j else 1)
                c_in = width * 2**i
        return c_in

    return build


NETWORKS: dict[str, Callable[[Network, int, int], int]] = {
    "small_cnn": _small_cnn,
    "resnet9": _resnet9,
    "resnet18": _resnet((2, 2, 2, 2)),
    "resnet34": _resnet((3, 4, 6, 3)),
}
"""How to append a backbone's layers, for a width and a number of image channels; returns the channels of its last maps."""


def averages(x: Activation, cells: int) -> Array:
    """Averages over a grid of cells, (N, C * cells * cells), channels first; cells overlap where they do not divide the side."""
    values = x.floats()
    n, side, _, channels = values.shape
    cells = min(cells, side)
    stride = side // cells
    window = side - (cells - 1) * stride
    out = np.empty((n, channels, cells, cells), np.float32)
    for i in range(cells):
        for j in range(cells):
            part = values[:, i * stride : i * stride + window, j * stride : j * stride + window]
            out[:, :, i, j] = _mean(part)
    return out.reshape(n, -1)


def _mean(part: Array) -> Array:
    """Over rows and columns, one pixel after the other in float32, as torch adds them."""
    total = np.zeros((part.shape[0], part.shape[3]), np.float32)
    for row in range(part.shape[1]):
        for column in range(part.shape[2]):
            total += part[:, row, column]
    return total / np.float32(part.shape[1] * part.shape[2])


def features(net: Network, pixels: Array, kind: str) -> Array:
    """Features (N, d) of pixels (N, H, W, C)."""
    last = net(pixels)
    if kind == "pooled":
        return averages(last, 1)
    ends, parts = list(net.ends.values()), FEATURE_PARTS[kind]
    needed = 1 + max(stage for stage, _ in parts)
    if len(ends) < needed:
        raise DeviceFileError(
            f"features = {kind!r} needs a network with {needed} sizes of maps, but this one has {len(ends)}; use 'pooled'"
        )
    return np.concatenate([averages(ends[-1 - stage], cells) for stage, cells in parts], axis=1)


__all__ = ["FEATURE_PARTS", "NETWORKS", "Network", "averages", "features"]
