"""Layers that stay in floats: by name and pattern, the same at every precision, remembered by the container."""

import json

import pytest
import torch
from torch import nn

from fedqssl.lowbit import ConversionError, LowBitOptions, LowBitWeight, Precision, from_bytes, to_bytes, to_lowbit
from fedqssl.lowbit.container import read_header
from fedqssl.lowbit.policy import fingerprint, state_of
from fedqssl.lowbit.skip import MOST, is_skipped, skipped_modules
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model

FOUR = Precision.for_bits(4)
BEFORE_SKIP = (
    '{"activation_clip": 4.0, "activation_quantizer": "uniform", "bn_saved_bits": null, "compander": "tanh", '
    '"gradient_rounding": "nearest", "quantize_input": true, "weights": "level"}'
)
"""What containers said about their options before there was ``skip``."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return SelfSupervisedNetwork(
        build_model("small_cnn", 4), nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4))
    )


def low(model: nn.Module) -> list[str]:
    return sorted(name.removesuffix(".weight") for name, m in model.named_modules() if isinstance(m, LowBitWeight))


def test_names_and_patterns():
    model = network()
    assert skipped_modules(model, ["encoder.layers.0"]) == {"encoder.layers.0"}
    assert skipped_modules(model, ["heads.?", "mark"]) == {"heads.0", "heads.1", "heads.2", "mark"}
    assert "encoder.layers.11" in skipped_modules(model, ["enc*"])  # a star stands for dots, too
    assert skipped_modules(model, []) == frozenset()
    with pytest.raises(ValueError, match=r"no layer is called 'encoder.layer.0'; did you mean 'encoder.layers.0'\?"):
        skipped_modules(model, ["encoder.layer.0"])
    with pytest.raises(ValueError, match=r"no layer is called 'layers.3'; did you mean 'encoder.layers.3'\?"):
        skipped_modules(model, ["layers.3"])
    with pytest.raises(
        ValueError, match=r"no layer is called 'qq'; layers are, for example, encoder.layers.0, heads.2"
    ):
        skipped_modules(model, ["qq"])


def test_a_tensor_is_skipped_with_the_module_around_it():
    skip = ("encoder.layers.0", "heads.*")
    assert is_skipped("encoder.layers.0.weight", skip) and is_skipped("heads.2.bias", skip)
    assert not is_skipped("encoder.layers.1.weight", skip) and not is_skipped("encoder.layers.0", ())
    assert is_skipped("encoder.layers.0.inner.weight", ("encoder.layers.0",))
    assert not is_skipped("heads", skip) and not is_skipped("weight", ("weight",))  # names of modules, not of tensors


def test_options_and_argument_add_up():
    options = LowBitOptions(skip=("encoder.layers.0",))
    model = to_lowbit(network(), FOUR, options, skip=["heads.*"])
    assert low(model) == ["encoder.layers.3", "encoder.layers.6", "encoder.layers.9"]
    assert model.meta["fedqssl"][1].skip == ("encoder.layers.0", "heads.*")
    assert type(model.get_submodule("encoder.layers.0")) is nn.Conv2d


@pytest.mark.parametrize("bits", [4, 32])
def test_the_container_remembers(bits):
    options = LowBitOptions(skip=("encoder.layers.0", "heads"))
    model = to_lowbit(network(), Precision.for_bits(bits), options).eval()
    data = to_bytes(model, exact=True)
    torch.manual_seed(1)
    again = from_bytes(data, SelfSupervisedNetwork(build_model("small_cnn", 4), network().heads)).eval()
    x = torch.rand(3, 3, 16, 16)
    assert low(again) == low(model) and torch.equal(again(x), model(x))
    assert json.loads(read_header(data)["options"])["skip"] == ["encoder.layers.0", "heads"]


def test_without_skip_the_description_is_that_of_before():
    assert read_header(to_bytes(to_lowbit(network(), FOUR)))["options"] == BEFORE_SKIP
    assert LowBitOptions.from_json(BEFORE_SKIP) == LowBitOptions()


def test_names_roles_and_fingerprint_are_the_same_at_every_precision():
    options = LowBitOptions(skip=("encoder.layers.0", "heads.2"))
    four, full = (to_lowbit(network(), Precision.for_bits(bits), options) for bits in (4, 32))
    assert fingerprint(four) == fingerprint(to_lowbit(network(), Precision.for_bits(8), options))
    roles = [{n: e.role for n, e in state_of(m).items() if not n.endswith((".low", ".high"))} for m in (four, full)]
    assert roles[0] == roles[1] and roles[0]["heads.2.weight"] == "averaged"


def test_what_has_no_counterpart_is_named_with_the_setting():
    heads = nn.Sequential(nn.Linear(32, 8), nn.LayerNorm(8), *(nn.GroupNorm(1, 8) for _ in range(5)), nn.Linear(8, 4))
    model = SelfSupervisedNetwork(build_model("small_cnn", 4), heads)
    with pytest.raises(
        ConversionError, match=r"heads.1 \(LayerNorm\), .* and 2 more; .*lowbit.skip=heads.1,\.\.\. "
    ) as error:
        to_lowbit(model, FOUR)
    assert len(str(error.value)) <= 200
    single = SelfSupervisedNetwork(build_model("small_cnn", 4), nn.Sequential(nn.Linear(32, 8), nn.LayerNorm(8)))
    with pytest.raises(ConversionError, match=r"lowbit.skip=heads.1 \("):  # to be copied
        to_lowbit(single, FOUR)
    converted = to_lowbit(model, FOUR, LowBitOptions(skip=tuple(f"heads.{i}" for i in range(1, 7))))
    assert "heads.7" in low(converted) and torch.isfinite(converted(torch.rand(2, 3, 16, 16))).all()


def test_lists_that_are_none():
    with pytest.raises(ValueError, match=f"more than {MOST}"):
        LowBitOptions(skip=("a",) * (MOST + 1))
    for wrong in (("",), (3,)):
        with pytest.raises(ValueError, match="names of layers"):
            LowBitOptions(skip=wrong)
