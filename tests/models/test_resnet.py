import pytest
import torch
from torch import fx, nn

from fedqssl.models import projector, resnet18, resnet34


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("make, millions", [(resnet18, 11.2), (resnet34, 21.3)])
def test_parameters_at_width_64(make, millions):
    with torch.device("meta"):
        assert count(make()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_parameters_by_hand_at_width_16():
    w = 16
    conv = 27 * w + 2 * 2 * 9 * w * w  # stem and first stage
    for i in (1, 2, 3):
        a, b = w * 2 ** (i - 1), w * 2**i
        conv += 9 * a * b + 3 * 9 * b * b + a * b
    norm = 2 * (5 * w + sum(5 * w * 2**i for i in (1, 2, 3)))
    assert count(resnet18(w)) == conv + norm


@pytest.mark.parametrize("channels, size", [(3, 32), (1, 28), (3, 16)])
def test_output_shapes(channels, size):
    x = torch.rand(2, channels, size, size)
    assert resnet18(4, in_channels=channels)(x).shape == (2, 32)
    assert resnet18(4, num_classes=7, in_channels=channels)(x).shape == (2, 7)


@pytest.mark.parametrize("make", [resnet18, resnet34])
def test_stages_halve_the_image_three_times(make):
    model, x = make(2), torch.rand(2, 3, 32, 32)
    x = model.relu1(model.bn1(model.conv1(x)))
    sizes = [x.shape[1:]]
    for stage in model.layers:
        x = stage(x)
        sizes.append(x.shape[1:])
    assert sizes == [(2, 32, 32), (2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]
    strides = [m.stride[0] for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert strides.count(2) == 6  # a 3x3 and a shortcut in each of the last three stages


def test_fx_trace_computes_the_same():
    model = resnet18(2, num_classes=3).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(fx.symbolic_trace(model)(x), model(x))


def test_every_weight_gets_a_gradient():
    model = nn.Sequential(resnet18(2), projector(16, 8, 4))
    model(torch.rand(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_projector_shapes():
    head = projector(16, 8, 4)
    assert head(torch.rand(3, 16)).shape == (3, 4) and head[0].bias is None


def test_width_must_be_positive():
    with pytest.raises(ValueError, match="width"):
        resnet18(0)
