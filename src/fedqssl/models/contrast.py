"""Contrast of images, one image at a time: what light and camera did to a whole photo is taken out before a network sees it.

The same function serves training (:func:`stretched`, on pixels) and prediction (:class:`Stretch`, the first layer of a feature
extractor), so that a device file and an ONNX graph bring it along.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, fx, nn

Contrast = Literal["as_is", "stretch"]
SPREAD = 0.2
"""The standard deviation that every image gets: 2.5 of them reach from the middle of the range to either end."""
LEAST = 4 / 255
"""An image that spreads less than this is nearly empty; stretching its noise further would help nobody."""


class Stretch(nn.Module):
    """``y = clamp(1/2 + 0.2 (x - mean) / max(std, least), 0, 1)``, rounded to 8 bits; mean and std of the whole image."""

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) in [0, 1] as such images."""
        mean = x.mean((1, 2, 3), keepdim=True)
        std = (x - mean).square().mean((1, 2, 3), keepdim=True).sqrt().clamp(min=LEAST)
        y = ((x - mean) * (SPREAD / std) + 0.5).clamp(0, 1)
        return (y * 255).round() / 255


def stretched(images: Tensor) -> Tensor:
    """uint8 images (N, C, H, W) as :class:`Stretch` shows them to a network, again in uint8."""
    shown: Tensor = Stretch()(images.float() / 255)
    return (shown * 255).round().to(torch.uint8)


def with_contrast(extractor: fx.GraphModule, contrast: Contrast) -> fx.GraphModule:
    """The extractor with :class:`Stretch` as its first layer, or as it is."""
    if contrast == "as_is":
        return extractor
    graph = extractor.graph
    (image,) = graph.find_nodes(op="placeholder")
    extractor.add_submodule("image_contrast", Stretch())
    with graph.inserting_after(image):
        first = graph.call_module("image_contrast", (image,))
    image.replace_all_uses_with(first, delete_user_cb=lambda user: user is not first)
    extractor.recompile()
    return extractor


__all__ = ["LEAST", "SPREAD", "Contrast", "Stretch", "stretched", "with_contrast"]
