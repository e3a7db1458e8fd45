"""Features of a frozen model, computed once and cached for every probe."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PIXELS = 500 * 32 * 32
"""Pixels in a batch at most, so that larger images need no more memory."""


def extract_features(model: nn.Module, images: Tensor, batch_size: int = 500) -> Tensor:
    """Features ``f_w(images / 255)`` of uint8 images (N, C, H, W), as (N, d) where the model is.

    The model runs in evaluation mode without gradients; each of its modules then gets its own mode back.
    """
    if images.ndim != 4 or images.dtype != torch.uint8 or len(images) == 0:
        kind = f"{images.dtype} {tuple(images.shape)}"
        raise ValueError(f"images must be uint8 (N > 0, C, H, W), not {kind}; undo the division by 255")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    batch_size = max(1, min(batch_size, PIXELS // images[0, 0].numel()))
    parameter = next(model.parameters(), None)
    device = images.device if parameter is None else parameter.device
    trains = [module for module in model.modules() if module.training]
    if trains:
        model.eval()
    try:
        return features_in_order(model, images, batch_size, device)
    finally:
        for module in trains:
            module.training = True


@torch.no_grad()
def features_in_order(model: nn.Module, images: Tensor, batch_size: int, device: torch.device) -> Tensor:
    """What a model in evaluation mode makes of uint8 images, batch by batch, on its device."""
    features: list[Tensor] = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size].to(device, torch.float32)
        features.append(model(batch.contiguous(memory_format=torch.channels_last).div_(255)))
    return torch.cat(features)


__all__ = ["extract_features", "features_in_order"]
