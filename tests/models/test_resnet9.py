"""The 9-layer ResNet: its shapes, its size, and training in few bits."""

import pytest
import torch
from torch import fx, nn

from fedqssl.lowbit import LowBitSGD, Precision, from_bytes, to_bytes, to_lowbit
from fedqssl.models.resnet9 import resnet9


@pytest.mark.parametrize("width, millions", [(16, 0.41), (32, 1.64)])
def test_weights_by_hand(width, millions):
    w = width
    conv = 27 * w + 9 * (2 * w * w + 2 * (2 * w) ** 2 + 8 * w * w + 32 * w * w + 2 * (8 * w) ** 2)
    norm = 2 * (w + 3 * 2 * w + 4 * w + 3 * 8 * w)
    assert sum(p.numel() for p in resnet9(w).parameters()) == conv + norm
    assert conv / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("channels, size", [(3, 32), (1, 28), (3, 24), (3, 64)])
def test_output_shapes(channels, size):
    model = resnet9(4, channels)
    assert model(torch.rand(2, channels, size, size)).shape == (2, model.feature_dim) == (2, 32)


def test_the_image_is_halved_three_times():
    x = torch.rand(2, 3, 32, 32)
    shapes = []
    for layer in resnet9(2).layers:
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(2, 32, 32), (4, 16, 16), (4, 16, 16), (8, 8, 8), (16, 4, 4), (16, 4, 4)]


def test_nine_layers_with_a_head_are_traced_to_the_same_function():
    model = resnet9(2).eval()
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 8  # the ninth is the classifier or the head
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(fx.symbolic_trace(model)(x), model(x))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8, 12, 16, 32])
def test_trains_and_travels_at_every_bitwidth(bits):
    torch.manual_seed(0)
    model = to_lowbit(resnet9(2), Precision.for_bits(bits))
    opt = LowBitSGD(model, lr=0.1)
    assert len(opt.weights) == (0 if bits == 32 else 8)
    before = to_bytes(model)
    model(torch.rand(4, 3, 16, 16)).square().mean().backward()
    opt.step()
    assert opt.steps == 1 and opt.skipped == 0 and to_bytes(model) != before
    copy = from_bytes(to_bytes(model, exact=True), resnet9(2)).eval()
    x = torch.rand(3, 3, 32, 32)
    assert torch.equal(copy(x), model.eval()(x))


def test_every_weight_gets_a_gradient():
    model = resnet9(2)
    model(torch.rand(4, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_width_must_be_positive():
    with pytest.raises(ValueError, match="width"):
        resnet9(0)
