"""Kinds of features: recomputed from the layers' own outputs, the same at every bitwidth."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedqssl.evaluation import extract_features
from fedqssl.lowbit import Precision, load_bytes, to_bytes, to_lowbit
from fedqssl.models.features import FEATURES, feature_dim, features_of, part_lengths, stage_ends
from fedqssl.models.network import SelfSupervisedNetwork, feature_extractor
from fedqssl.models.registry import MODELS, build_model
from fedqssl.models.resnet import projector
from fedqssl.models.resnet9 import resnet9


def network(name: str = "resnet9", width: int = 2, channels: int = 3) -> SelfSupervisedNetwork:
    torch.manual_seed(0)
    encoder = build_model(name, width, channels)
    model = SelfSupervisedNetwork(encoder, projector(encoder.feature_dim, 8, 8))
    with torch.no_grad():
        model(torch.rand(32, channels, 32, 32))  # batch norm has seen something
    return model


def test_features_by_hand():
    """Of the float network: pooled maps of the layers that its definition names."""
    model = network().eval()
    images = torch.rand(3, 3, 32, 32)
    maps, x = [], images
    for layer in model.encoder.layers:
        x = layer(x)
        maps.append(x)
    last, middle = maps[5], maps[2]  # (3, 16, 4, 4) and (3, 4, 16, 16)
    assert torch.equal(features_of(model, "pooled")(images), last.mean((2, 3)))
    quarters = [last[:, :, i : i + 2, j : j + 2].mean((2, 3)) for i in (0, 2) for j in (0, 2)]
    assert torch.allclose(features_of(model, "grid2")(images), torch.stack(quarters, 2).flatten(1), atol=1e-6)
    grid = F.avg_pool2d(middle, 4).flatten(1)
    assert torch.allclose(features_of(model, "stages")(images), torch.cat([last.mean((2, 3)), grid], 1), atol=1e-6)
    pyramid = torch.cat([last.mean((2, 3)), grid, F.avg_pool2d(middle, 2).flatten(1)], 1)
    assert torch.allclose(features_of(model, "pyramid")(images), pyramid, atol=1e-6)


@pytest.mark.parametrize(("kind", "lengths"), [("stages", (16, 64)), ("pyramid", (16, 64, 256)), ("grid2", (64,))])
def test_lengths_of_the_parts(kind, lengths):
    for bits in (4, 32):
        extractor = features_of(to_lowbit(network(), Precision.for_bits(bits)), kind)
        assert part_lengths(extractor) == lengths and feature_dim(extractor) == sum(lengths)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", FEATURES)
@pytest.mark.parametrize("bits", [4, 12, 32])
def test_every_model_has_every_kind_at_every_bitwidth(name, kind, bits):
    model = to_lowbit(network(name, 2, 1), Precision.for_bits(bits))
    extractor = features_of(model, kind, channels=1)
    found = extract_features(extractor, torch.randint(0, 256, (5, 1, 32, 32), dtype=torch.uint8))
    dim = {"pooled": 16, "grid2": 64, "stages": 16 + 16 * 4, "pyramid": 16 + 16 * 4 + 64 * 4}[kind]
    assert found.shape == (5, dim) and feature_dim(extractor, channels=1) == dim
    assert found.isfinite().all() and found.std() > 0


@pytest.mark.parametrize("kind", FEATURES)
def test_many_bits_are_close_to_floats(kind):
    images = torch.randint(0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0)) / 255
    full, few, many = (to_lowbit(network(), Precision.for_bits(bits)).eval() for bits in (32, 5, 12))
    error = [(features_of(m, kind)(images) - features_of(full, kind)(images)).abs().mean() for m in (few, many)]
    assert error[1] < 0.01 and error[1] < error[0] / 5


@pytest.mark.parametrize("kind", ["grid2", "stages"])
@pytest.mark.parametrize("bits", [4, 32])
def test_weights_are_shared_and_the_model_stays_whole(kind, bits):
    model = to_lowbit(network(), Precision.for_bits(bits)).eval()
    images = torch.rand(2, 3, 32, 32)
    before, other = model(images), copy.deepcopy(model)
    extractor = features_of(model, kind)
    first = extractor(images)
    assert torch.equal(model(images), before) and not extractor.training
    other.train()
    with torch.no_grad():
        for _ in range(5):
            other(torch.rand(16, 3, 32, 32))
    load_bytes(model, to_bytes(other, exact=True))
    assert not torch.equal(extractor(images), first)  # it follows the model


@pytest.mark.parametrize("bits", [4, 32])
def test_a_stage_ends_where_the_maps_get_smaller(bits):
    model = feature_extractor(to_lowbit(network(), Precision.for_bits(bits)))
    ends = stage_ends(model, torch.zeros(1, 3, 32, 32))
    assert [side for _, side in ends] == [32, 16, 8, 4]
    assert [side for _, side in stage_ends(model, torch.zeros(1, 3, 64, 64))] == [64, 32, 16, 8]
    assert model.training  # as it was


@pytest.mark.parametrize("size", [24, 28, 64, 96])
def test_other_sizes_of_images_give_as_many_features(size):
    model = to_lowbit(network(), Precision.for_bits(4)).eval()
    for kind, dim in (("grid2", 64), ("stages", 80)):
        assert features_of(model, kind, size=size)(torch.rand(2, 3, size, size)).shape == (2, dim)


def test_extractors_can_be_packed():
    model = to_lowbit(network(), Precision.for_bits(4))
    assert to_bytes(features_of(model, "stages")) == to_bytes(feature_extractor(model))


def test_what_cannot_be_says_so():
    with pytest.raises(ValueError, match="pooled, grid2, stages"):
        features_of(network(), "grid3")
    with pytest.raises(ValueError, match="no features are marked"):
        features_of(resnet9(2), "grid2")
    flat = SelfSupervisedNetwork(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Identity()
    )
    with pytest.raises(ValueError, match="needs a network with 3 sizes of maps, but this one has 1"):
        features_of(flat, "stages")
