"""``to_lowbit``: what is converted, what is fused, what is named when it cannot be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedqssl.lowbit import ConversionError, LowBitOptions, LowBitSGD, LowBitWeight, Precision, copy_of, to_lowbit
from fedqssl.lowbit.layers import LowBitConv2d, LowBitLinear, LowBitNorm, RangeCodes, TanhCodes
from fedqssl.models import projector, resnet18

FOUR = Precision.for_bits(4)


def kinds(model: nn.Module, *types: type) -> list[str]:
    return [n for n, m in model.named_modules() if isinstance(m, types)]


def train_once(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    opt = LowBitSGD(model, lr=0.1)
    out = model(x)
    out.square().mean().backward()
    opt.step()
    assert opt.steps == 1 and opt.skipped == 0
    return out.detach()


def test_precision_for_bits():
    assert Precision.for_bits(4) == Precision(4, 4, 6)
    assert Precision.for_bits(16) == Precision(16, 16, 16)
    assert Precision.for_bits(15).gradient == 16
    assert Precision.for_bits(32).full


class Tied(nn.Module):
    """Two layers with one parameter and one buffer between them, and a batch norm with hooks and counters."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.one.register_buffer("seen", torch.arange(3.0))
        self.two.register_buffer("seen", self.one.seen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.norm(self.one(x))))


@pytest.mark.parametrize("bits", [4, 32])
def test_a_copy_trains_alone(bits):
    torch.manual_seed(0)
    model, x = to_lowbit(Tied(), Precision.for_bits(bits)), torch.rand(8, 6)
    before = copy.deepcopy(model.state_dict())
    one, other = copy_of(model), copy.deepcopy(model)
    assert torch.equal(train_once(one, x), train_once(other, x)) and one.meta == model.meta
    assert all(torch.equal(y, before[name]) for name, y in model.state_dict().items())
    changed = one.state_dict()
    assert all(torch.equal(y, changed[name]) for name, y in other.state_dict().items())
    assert any(not torch.equal(y, before[name]) for name, y in changed.items())
    tensors = dict(one.named_buffers(remove_duplicate=False))
    if bits == 32:
        assert tensors["one.seen"] is tensors["two.seen"]
    one.recompile()
    assert type(one).forward is not type(model).forward and torch.equal(model.eval()(x), copy_of(model)(x))


@pytest.mark.parametrize("bits", [0, 17, 31, -4, "four", 4.0, True, None])
def test_bad_bits_are_refused_with_the_allowed_range(bits):
    with pytest.raises(ValueError, match=r"from 1 to 16, or 32"):
        Precision.for_bits(bits)


def test_full_precision_is_all_or_nothing():
    with pytest.raises(ValueError, match="mixed"):
        Precision(32, 4, 6)


def test_resnet_keeps_its_layer_names_and_every_layer_is_low_bit():
    base = resnet18(width=8, num_classes=10)
    model = to_lowbit(base, FOUR)
    wanted = [n for n, m in base.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert kinds(model, LowBitConv2d, LowBitLinear) == wanted
    norms = [n for n, m in base.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert kinds(model, LowBitNorm) == norms
    assert not kinds(model, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.ReLU)
    assert [n for n in norms if not model.get_submodule(n).activate] == [n for n in norms if "shortcut" in n]
    assert base.conv1.weight.dtype == torch.float32 and isinstance(base.conv1, nn.Conv2d)


def test_the_original_model_is_not_changed():
    base = resnet18(width=8)
    before = copy.deepcopy(base.state_dict())
    train_once(to_lowbit(base, FOUR), torch.rand(4, 3, 16, 16))
    assert all(torch.equal(before[k], v) for k, v in base.state_dict().items())


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 7, 8, 10, 12, 16, 32])
def test_every_bitwidth_trains_and_evaluates(bits):
    torch.manual_seed(0)
    model = to_lowbit(nn.Sequential(resnet18(width=8), projector(64, 32, 16)), Precision.for_bits(bits))
    x = torch.rand(4, 3, 16, 16)
    out = train_once(model, x)
    assert out.shape == (4, 16) and torch.isfinite(out).all()
    model.eval()
    with torch.no_grad():
        first, second = model(x), model(x)
    assert torch.equal(first, second) and torch.isfinite(first).all()


class Functional(nn.Module):
    """One ReLU module called twice, functional forms, an in-place add, a grouped convolution, max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding="same")
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(8, 6, 3, stride=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(x))
        y += x
        x = F.max_pool2d(self.relu(y), 2)
        x = torch.relu(self.conv3(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("bits", [4, 12, 32])
def test_functional_relu_shared_modules_groups_pooling_and_bias(bits):
    torch.manual_seed(0)
    model = to_lowbit(Functional(), Precision.for_bits(bits))
    out = train_once(model, torch.rand(5, 3, 12, 12))
    assert out.shape == (5, 5)
    if bits != 32:
        assert kinds(model, LowBitConv2d, LowBitLinear) == ["conv1", "conv2", "conv3", "head"]
        assert not model.get_submodule("conv3").weight.absorbed and model.get_submodule("conv2").weight.absorbed


def test_sixteen_bits_come_close_to_full_precision():
    torch.manual_seed(0)
    base = Functional()
    x = torch.rand(8, 3, 12, 12)
    low, full = to_lowbit(base, Precision.for_bits(16)), to_lowbit(base, Precision.for_bits(32))
    x = (x * 255).round() / 255
    assert torch.allclose(low(x), full(x), atol=2e-3)


def test_what_cannot_be_converted_is_named_all_at_once():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2)
            self.norm = nn.GroupNorm(1, 4)
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.up(x)) * self.gain

    with pytest.raises(ConversionError) as error:
        to_lowbit(Odd(), FOUR)
    message = str(error.value)
    assert all(word in message for word in ("up (ConvTranspose2d)", "norm (GroupNorm)", "gain", "skip="))
    circular = nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")
    with pytest.raises(ConversionError, match="circular"):
        to_lowbit(nn.Sequential(circular), FOUR)


def test_untraceable_forward_says_so():
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ConversionError, match="traced"):
        to_lowbit(Branch(), FOUR)


def test_skip_leaves_layers_in_floats_and_trains_them():
    torch.manual_seed(0)
    model = to_lowbit(resnet18(width=8, num_classes=10), FOUR, skip=["conv1", "classifier"])
    assert isinstance(model.get_submodule("conv1"), nn.Conv2d)
    before = model.get_submodule("classifier").weight.clone()
    train_once(model, torch.rand(4, 3, 16, 16))
    assert not torch.equal(before, model.get_submodule("classifier").weight)
    with pytest.raises(ConversionError, match=r"no layer .*clasifier"):
        to_lowbit(resnet18(width=8), FOUR, skip=["clasifier"])


def test_images_outside_0_1_are_refused_with_advice():
    model = to_lowbit(resnet18(width=8), FOUR)
    for x in (torch.rand(2, 3, 8, 8) * 255, torch.randn(2, 3, 8, 8)):
        with pytest.raises(ValueError, match="divide by 255"):
            model(x)
    free = to_lowbit(resnet18(width=8), FOUR, LowBitOptions(quantize_input=False))
    assert len(kinds(free, RangeCodes)) == 1 and torch.isfinite(free(torch.randn(2, 3, 8, 8))).all()


@pytest.mark.parametrize("bits", [4, 32])
def test_tanh_activation_reading(bits):
    torch.manual_seed(0)
    options = LowBitOptions(activation_quantizer="tanh")
    model = to_lowbit(resnet18(width=8), Precision.for_bits(bits), options)
    assert len(kinds(model, TanhCodes)) == (0 if bits == 32 else 9 + 8)
    out = train_once(model, torch.rand(4, 3, 16, 16))
    assert (out >= 0).all() and (out <= 1).all()


def test_every_layer_and_seed_has_its_own_draws_of_gradient_rounding():
    """Not the same numbers in every layer, and not the same again in every round's copy of the model."""
    prototype = to_lowbit(resnet18(width=8), FOUR, LowBitOptions(gradient_rounding="stochastic"))

    def draws(seed):
        model = copy.deepcopy(prototype)
        LowBitSGD(model, lr=0.1, seed=seed)
        layers = {n: m.generator for n, m in model.named_modules() if getattr(m, "generator", None) is not None}
        return {name: torch.rand((), generator=generator).item() for name, generator in layers.items()}

    first, again, other = draws(1), draws(1), draws(2)
    assert first == again and len(first) > 10
    assert len({*first.values(), *other.values()}) == 2 * len(first)


def test_stochastic_gradient_rounding_runs_and_is_seeded():
    def codes() -> torch.Tensor:
        torch.manual_seed(0)
        model = to_lowbit(resnet18(width=8), FOUR, LowBitOptions(gradient_rounding="stochastic"))
        train_once(model, torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
        return torch.cat([m.codes for m in model.modules() if isinstance(m, LowBitWeight)])

    assert torch.equal(codes(), codes())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weights": "float"}, "level"),
        ({"compander": "log"}, "tanh"),
        ({"activation_clip": 0.0}, "positive"),
        ({"bn_saved_bits": 9}, "1..8"),
        ({"activation_quantizer": "relu"}, "uniform"),
        ({"gradient_rounding": "up"}, "stochastic"),
    ],
)
def test_bad_options_say_what_is_allowed(arguments, words):
    with pytest.raises(ValueError, match=words):
        LowBitOptions(**arguments)


class Broadcast(nn.Module):
    """A residual of shape (N, C, 1, 1), as in squeeze-and-excite blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(x)) + F.adaptive_avg_pool2d(x, 1))
        return torch.relu(F.adaptive_avg_pool2d(y, 1) + y + y)


def test_broadcast_residuals_and_sums_of_one_tensor_with_itself():
    torch.manual_seed(0)
    base = Broadcast()
    x = (torch.rand(4, 3, 8, 8) * 255).round() / 255
    low, full = to_lowbit(base, Precision.for_bits(12)), to_lowbit(base, Precision.for_bits(32))
    assert torch.allclose(low(x), full(x), atol=0.02)


def test_double_precision_models_and_inputs_are_taken_as_float32():
    torch.manual_seed(0)
    base, x = Functional(), torch.rand(4, 3, 12, 12)
    assert torch.equal(to_lowbit(base, FOUR)(x), to_lowbit(copy.deepcopy(base).double(), FOUR)(x.double()))


def test_codes_are_not_quantized_twice_behind_flatten_and_max_pool():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    model = to_lowbit(net, Precision.for_bits(2), LowBitOptions(activation_clip=1.0))
    seen = []
    model.get_submodule("4").register_forward_pre_hook(lambda _, args: seen.append(args[0].floats()))
    model(torch.rand(8, 3, 8, 8))
    grid = torch.arange(4) / 3
    assert (seen[0].unsqueeze(-1) - grid).abs().amin(-1).max() < 1e-6 and seen[0].unique().numel() > 2


def test_a_backward_pass_that_was_broken_off_leaves_nothing_behind():
    torch.manual_seed(0)
    model = to_lowbit(resnet18(width=8), FOUR)
    x = torch.rand(4, 3, 16, 16)
    weights = [m for m in model.modules() if isinstance(m, LowBitWeight)]

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        for w in weights:
            w.clear_gradient()
        loss.backward(retain_graph=True)
        return [w.gradient.unpack() for w in weights]

    loss = model(x).square().mean()
    want = gradients(loss)
    torch.autograd.grad(loss, weights[-1].anchor, retain_graph=True, allow_unused=True)
    assert all(torch.equal(a, b) for a, b in zip(want, gradients(loss), strict=True))


def test_a_constant_channel_does_not_blow_up():
    torch.manual_seed(0)
    model = to_lowbit(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), Precision.for_bits(8))
    model.get_submodule("1").bias.data.fill_(0.5)
    loss = (model(torch.full((4, 3, 8, 8), 0.5)) * torch.randn(4, 8, 6, 6)).mean()
    loss.backward()
    assert model.get_submodule("0").weight.gradient.unpack().abs().max() < 0.1


def test_other_shapes_are_refused_with_advice():
    with pytest.raises(ValueError, match="fold"):
        to_lowbit(nn.Linear(6, 5), FOUR, LowBitOptions(quantize_input=False))(torch.rand(4, 7, 6))
