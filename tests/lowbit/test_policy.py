"""What happens to each tensor of a model: exactly one role each, the same names at every precision."""

import pytest
import torch
from torch import nn

from fedqssl.lowbit import LowBitWeight, Precision, to_lowbit
from fedqssl.lowbit.policy import all_finite, fingerprint, state_of
from fedqssl.models import resnet18
from forging import small_net

RANGES = (".low", ".high")


def _at(bits: int, net: nn.Module | None = None, **kw) -> nn.Module:
    return to_lowbit(net or small_net(), Precision.for_bits(bits), **kw)


def _roles(model: nn.Module, **kw) -> dict[str, str]:
    return {name: entry.role for name, entry in state_of(model, **kw).items()}


def test_roles_of_a_small_model_by_hand():
    norm = {"weight": "averaged", "bias": "averaged", "running_mean": "averaged", "running_var": "averaged"}
    norm["num_batches_tracked"] = "dropped"
    want = {"0.weight": "quantized", "3.weight": "quantized", "3.bias": "averaged"}
    want |= {"8.weight": "quantized", "8.bias": "averaged"}
    want |= {f"{layer}.{name}": role for layer in (1, 4) for name, role in norm.items()}
    got = _roles(_at(4))
    ranges = {name for name in got if name.endswith(RANGES)}
    assert {n: r for n, r in got.items() if n not in ranges} == want
    assert {got[name] for name in ranges} == {"averaged"}
    assert _roles(_at(32)) == want


@pytest.mark.parametrize("bits", [1, 4, 12, 32])
def test_every_tensor_of_the_state_has_exactly_one_role(bits):
    model = _at(bits, resnet18(width=4, num_classes=3), skip=["classifier"])
    entries = state_of(model)
    internal = {
        f"{name}.{part}"
        for name, module in model.named_modules()
        if isinstance(module, LowBitWeight)
        for part in ("anchor", "codes", "scale")
    }
    weights = {name for name, module in model.named_modules() if isinstance(module, LowBitWeight)}
    assert (not internal) == (bits == 32)
    assert set(entries) == (set(model.state_dict()) - internal) | weights
    assert all(entry.name == name for name, entry in entries.items())
    assert all((entry.weight is None) != (entry.tensor is None) for entry in entries.values())
    held = [id(e.weight if e.weight is not None else e.tensor) for e in entries.values()]
    assert len(set(held)) == len(held)
    assert {e.role for e in entries.values()} == {"quantized", "averaged", "dropped"}
    assert list(entries) == sorted(entries)


@pytest.mark.parametrize("bits", [4, 32])
def test_roles_of_a_resnet(bits):
    net = resnet18(width=4, num_classes=3)
    convolutions = {f"{n}.weight" for n, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    roles = _roles(_at(bits, net))
    assert {n for n, r in roles.items() if r == "quantized"} == convolutions
    assert {n for n, r in roles.items() if r == "dropped"} == {n for n in roles if n.endswith("num_batches_tracked")}
    assert roles["classifier.bias"] == "averaged"
    skipped = _roles(_at(bits, net, skip=["classifier"]))
    assert skipped["classifier.weight"] == "averaged"  # not quantized, so it travels as floats


@pytest.mark.parametrize("bits", range(1, 17))
def test_names_shapes_and_fingerprint_are_the_same_at_every_low_bitwidth(bits):
    here, four = _at(bits), _at(4)
    assert {n: (e.role, e.shape) for n, e in state_of(here).items()} == {
        n: (e.role, e.shape) for n, e in state_of(four).items()
    }
    assert fingerprint(here) == fingerprint(four)


@pytest.mark.parametrize("make", [small_net, lambda: resnet18(width=4), lambda: resnet18(width=4, num_classes=5)])
def test_full_precision_shares_all_names_but_the_ranges_of_codes(make):
    low, full = state_of(_at(4, make())), state_of(_at(32, make()))
    assert all(name.endswith(RANGES) for name in set(low) ^ set(full))
    assert set(full) <= set(low)
    assert all(low[n].role == e.role and low[n].shape == e.shape for n, e in full.items())
    assert fingerprint(_at(4, make())) == fingerprint(_at(32, make()))


def test_fingerprint_tells_architectures_apart_but_not_weights():
    assert fingerprint(_at(4)) == fingerprint(_at(4, small_net()))
    other_weights = small_net()
    nn.init.normal_(other_weights[0].weight)
    assert fingerprint(_at(4, other_weights)) == fingerprint(_at(4))
    assert fingerprint(_at(4, small_net(6))) != fingerprint(_at(4))
    assert fingerprint(_at(4, nn.Sequential(small_net()))) != fingerprint(_at(4))  # other names
    assert fingerprint(_at(4, skip=["0"])) != fingerprint(_at(4))  # other roles


def test_local_by_name_and_by_rule():
    model = _at(4)
    named = _roles(model, local=["1.running_mean", "0.weight"])
    assert {n for n, r in named.items() if r == "local"} == {"1.running_mean", "0.weight"}
    ruled = _roles(model, local=lambda name: name.startswith("8."))
    assert {n for n, r in ruled.items() if r == "local"} == {"8.weight", "8.bias"}
    generated = _roles(model, local=(n for n in ["1.bias"]))
    assert [n for n, r in generated.items() if r == "local"] == ["1.bias"]
    assert set(named) == set(ruled) == set(_roles(model))
    entry = state_of(model, local=["0.weight"])["0.weight"]
    assert entry.weight is not None and entry.shape == (5, 3, 3, 3)


@pytest.mark.parametrize("bits", [3, 8, 32])
def test_parameters_and_assign(bits):
    model = _at(bits)
    entries = state_of(model)
    for name in ("0.weight", "8.bias", "4.running_var"):
        entry = entries[name]
        x = torch.randn(entry.shape, generator=torch.Generator().manual_seed(1)) * 0.1
        entry.assign(x)
        read = entry.parameters_x()
        assert read.dtype == torch.float32 and read.shape == entry.shape and not read.requires_grad
        cell = 2 * float(x.abs().max()) / (2**bits - 1)
        assert float((read - x).abs().max()) <= (cell if entry.role == "quantized" and bits < 32 else 0)
        entry.assign(read)
        assert torch.equal(entries[name].parameters_x(), read)  # idempotent: nothing moves
    assert torch.equal(state_of(model)["4.running_var"].parameters_x(), dict(model.named_buffers())["4.running_var"])


def test_finite_where_the_sum_overflows():
    """The sum is only a short cut: large finite values pass, and infinities that would cancel do not."""
    nan, cancel = torch.tensor([1.0, float("nan")]), torch.tensor([float("inf"), -float("inf")])
    many, half = torch.full((10,), 3e38), torch.full((9,), 60_000.0, dtype=torch.float16)
    assert all_finite([many, half, torch.empty(0), nan, cancel]) == [True, True, True, False, False]
    assert all_finite([]) == []
