"""Models by name and by import path."""

import sys

import pytest
import torch
from torch import nn

from fedqssl.lowbit import LowBitSGD, Precision, to_lowbit
from fedqssl.models.registry import MODELS, ModelError, build_model
from fedqssl.models.smallcnn import small_cnn

USER_CODE = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, bias=False)
        self.bn = nn.BatchNorm2d(5)
    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))).mean((2, 3))

class Told(Plain):
    feature_dim = 5

class Mistaken(Plain):
    feature_dim = 77

class Failing(Plain):
    def __init__(self):
        raise NameError("no\\nsuch thing")

class Unpooled(Plain):
    def forward(self, x):
        return self.conv(x)

def make(width, *, in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, width, 32), nn.Flatten())

def needs(depth): ...
def wrong(): return 3
made = Plain()
number = 3
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    (tmp_path / "user_models_for_test.py").write_text(USER_CODE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield "user_models_for_test"
    assert sys.path == before
    sys.modules.pop("user_models_for_test", None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_model_tells_its_feature_dimension(name, channels):
    model = build_model(name, width=2, in_channels=channels)
    assert model(torch.rand(2, channels, 32, 32)).shape == (2, model.feature_dim) == (2, 16)
    assert MODELS[name].description


def test_small_cnn_weights_by_hand():
    w = 16
    conv = 27 * w + 9 * sum(w * 2 ** (i - 1) * w * 2**i for i in (1, 2, 3))
    assert sum(p.numel() for p in small_cnn(w).parameters()) == conv + 2 * 15 * w
    assert conv == pytest.approx(98e3, rel=0.01)
    with pytest.raises(ValueError, match="width"):
        small_cnn(0)


def test_small_cnn_trains_in_four_bits():
    torch.manual_seed(0)
    model = to_lowbit(small_cnn(4), Precision.for_bits(4))
    opt = LowBitSGD(model, lr=0.1)
    model(torch.rand(4, 3, 16, 16)).square().mean().backward()
    opt.step()
    assert opt.steps == 1


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ModelError, match="did you mean 'resnet18'"):
        build_model("resnet-18")


def test_feature_dimension_is_measured_or_told(user):
    model = build_model(f"{user}:Plain")
    assert model.feature_dim == 5 and model.training
    assert int(model.get_submodule("bn").get_buffer("num_batches_tracked")) == 0  # measuring leaves no trace
    assert build_model(f"{user}:Told").feature_dim == 5
    with pytest.raises(ModelError, match="states feature_dim = 77 but returns 5"):
        build_model(f"{user}:Mistaken")


def test_code_that_fails_is_told_in_one_line(user, tmp_path):
    with pytest.raises(ModelError, match=r"cannot be built .NameError: no such thing.; fix it"):
        build_model(f"{user}:Failing")
    (tmp_path / "user_module_that_fails.py").write_text("def f(:\n")
    with pytest.raises(ModelError, match=r"fails when imported .SyntaxError"):
        build_model("user_module_that_fails:f")


def test_arguments_are_passed_if_they_are_taken(user):
    model = build_model(f"{user}:make", width=6, in_channels=1)
    assert model.feature_dim == 6 and isinstance(model, nn.Sequential)


@pytest.mark.parametrize(
    "name, says",
    [
        ("no_such_module_at_all:Net", "cannot import 'no_such_module_at_all'"),
        ("user_models_for_test:Plan", "has no 'Plan'; did you mean 'Plain'"),
        ("user_models_for_test:", "has no ''"),
        (":Plain", "cannot import ''"),
        ("user_models_for_test:Unpooled", r"must return features \(N, d\).*\(1, 5, 30, 30\)"),
        ("user_models_for_test:needs", "needs depth"),
        ("user_models_for_test:wrong", "made a int"),
        ("user_models_for_test:made", "not an instance"),
        ("user_models_for_test:number", "not an instance"),
    ],
)
def test_what_is_wrong_with_a_user_s_model_is_said(user, name, says):
    with pytest.raises(ModelError, match=says):
        build_model(name)


def test_a_model_that_fails_on_the_image(user):
    with pytest.raises(ModelError, match="fails on one 1x32x32 image"):
        build_model(f"{user}:Plain", in_channels=1)
