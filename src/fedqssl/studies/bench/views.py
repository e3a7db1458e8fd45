"""Images per second of the two-view augmentation against kornia with the same augmentations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedqssl.ssl.views import ViewConfig, two_views
from fedqssl.studies.bench.records import Record, Row, available, import_peer
from fedqssl.studies.bench.timing import interleaved


def kornia_two_views(size: int, config: ViewConfig) -> Callable[[Tensor], Tensor]:
    """Kornia's pipeline for ``config``: uint8 (N, 3, H, W) -> float (2N, 3, H, W).

    Raises:
        PeerUnavailableError: kornia is not installed.
    """
    K = import_peer("kornia.augmentation", "pip install 'fedqssl[bench]'")
    pipeline = nn.Sequential(
        K.RandomResizedCrop((size, size), scale=config.scale, ratio=config.ratio),
        K.RandomHorizontalFlip(p=config.flip_p),
        K.ColorJiggle(config.brightness, config.contrast, config.saturation, config.hue, p=config.jitter_p),
        K.RandomGrayscale(p=config.grayscale_p),
    )

    def views(images: Tensor) -> Tensor:
        result: Tensor = pipeline(images.float().div_(255).repeat(2, 1, 1, 1))
        return result

    return views


def run(images: int = 512, size: int = 32, repeats: int = 7, threads: int = 1) -> Record:
    """Measure both on ``images`` random images; ``vs_kornia`` is our images per second over kornia's.

    An image counts once, although two views are made of it.
    """
    if images < 1:
        raise ValueError(f"images must be at least 1, not {images}")
    config = ViewConfig()
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=generator)
    made, skipped = available({"kornia": lambda: kornia_two_views(size, config)})
    views = {"fedqssl": lambda images: two_views(images, generator, config), **made}
    work = {name: partial(make, batch) for name, make in views.items()}
    timings = interleaved(work, "fedqssl", repeats=repeats, threads=threads)
    results: list[Row] = [
        {
            "variant": name,
            "images_per_s": images / timing.seconds,
            "vs_kornia": timings["kornia"].ratio / timing.ratio if "kornia" in timings else None,
        }
        for name, timing in timings.items()
    ]
    settings = {"images": images, "size": size, "repeats": repeats, "threads": threads}
    return Record("views", results, skipped, settings)
