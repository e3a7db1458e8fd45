"""Contrast of single images: by hand, idempotent enough, the same in training, in features and in device files."""

from typing import Any

import numpy as np
import pytest
import torch

from fedqssl.evaluation import extract_features
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions, Precision, to_bytes, to_lowbit
from fedqssl.models.contrast import Stretch, stretched, with_contrast
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model
from fedqssl.models.resnet import projector
from fedqssl.ssl.views import ViewConfig, two_views

IMAGES = torch.randint(20, 90, (6, 3, 16, 16), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)


def test_by_hand():
    """In numpy and float64: the mean goes to the middle, the standard deviation becomes 51 of 255."""
    for image, found in zip(IMAGES.double().numpy(), stretched(IMAGES).double().numpy(), strict=True):
        expected = np.clip(127.5 + 51 * (image - image.mean()) / image.std(), 0, 255)
        assert np.abs(found - expected).max() < 0.51
        assert found.mean() == pytest.approx(127.5, abs=0.5) and found.std() == pytest.approx(51, abs=0.5)


def test_light_and_camera_no_longer_matter():
    brighter = (IMAGES.float() * 1.5 + 40).round().clamp(0, 255).to(torch.uint8)
    assert (stretched(brighter).int() - stretched(IMAGES).int()).abs().max() <= 2
    assert (brighter.int() - IMAGES.int()).abs().max() > 60


def test_an_empty_image_stays_grey_and_its_noise_small():
    flat = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    assert stretched(flat).unique().tolist() == [128]
    flat[0, 0, 0, 0] = 203
    assert (stretched(flat).int() - 128).abs().max() <= 51 * 3 / 4 + 1


def test_images_do_not_change_each_other():
    assert torch.equal(stretched(IMAGES)[2:3], stretched(IMAGES[2:3]))


def network() -> SelfSupervisedNetwork:
    torch.manual_seed(0)
    encoder = build_model("resnet9", 2)
    return SelfSupervisedNetwork(encoder, projector(16, 8, 8))


@pytest.mark.parametrize("bits", [4, 12, 32])
@pytest.mark.parametrize("kind", ["pooled", "pyramid"])
def test_an_extractor_sees_what_training_saw(bits, kind):
    images = IMAGES.repeat_interleave(2, 2).repeat_interleave(2, 3)
    plain, other = (features_of(to_lowbit(network(), Precision.for_bits(bits)), kind) for _ in range(2))
    changed = with_contrast(other, "stretch")
    assert torch.equal(extract_features(changed, images), extract_features(plain, stretched(images)))
    assert not torch.equal(extract_features(changed, images), extract_features(plain, images))
    assert with_contrast(plain, "as_is") is plain and len(to_bytes(changed)) == len(to_bytes(plain))
    assert sum(isinstance(m, Stretch) for m in changed.modules()) == 1


def test_views_are_cut_from_stretched_images():
    words: dict[str, Any] = {
        "model": "resnet9",
        "width": 2,
        "in_channels": 3,
        "objective": "simclr",
        "temperature": 0.5,
    }
    views = ViewConfig(size=12)
    plain, stretch = (
        Task(**words, batch_size=4, seed=0, options=LowBitOptions(), views=views, contrast=contrast)
        for contrast in ("as_is", "stretch")
    )

    def draws() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    assert torch.equal(stretch.two_views(IMAGES, draws()), two_views(stretched(IMAGES), draws(), views))
    assert torch.equal(plain.two_views(IMAGES, draws()), two_views(IMAGES, draws(), views))
