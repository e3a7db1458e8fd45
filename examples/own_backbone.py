"""Your own backbone: any module of convolutions, batch norm, ReLU and pooling becomes low-bit by its import path.

    python examples/own_backbone.py OUT

Run it from the folder that holds this file (or put that folder on PYTHONPATH): the run names
the class as ``own_backbone:TinyNet``.
"""

import itertools
import sys

from torch import Tensor, nn

import fedqssl


class TinyNet(nn.Module):
    """Images (N, C, H, W) to features (N, 4 * width)."""

    def __init__(self, width: int = 8, in_channels: int = 3) -> None:
        super().__init__()
        sizes = [in_channels, width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for c_in, c_out in itertools.pairwise(sizes):
            layers += [nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.feature_dim = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def main(out: str, **settings: object) -> None:
    run = fedqssl.run("quickstart", out=out, model="own_backbone:TinyNet", width=8, **settings)
    client = list(run.clients.values())[-1]
    print(f"{client.name}: {client.bits} bits, {len(client.model().to_bytes()):,} bytes")
    # from a file: fedqssl.load(path, trust=True), because loading it imports own_backbone


if __name__ == "__main__":
    main(sys.argv[1])
