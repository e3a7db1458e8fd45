"""The model container: round trips and sizes."""

import hashlib
import os
import struct
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from torch import nn

from fedqssl.lowbit import (
    ContainerError,
    LowBitOptions,
    LowBitWeight,
    Precision,
    container,
    from_bytes,
    load_bytes,
    to_bytes,
    to_lowbit,
)
from fedqssl.lowbit.container import MAGIC, VERSION, check_bytes, read_header
from fedqssl.lowbit.policy import state_of
from fedqssl.models import resnet18
from fedqssl.quant import packed_size
from forging import HEAD, digest, parts, refuses, small_model, small_net


@pytest.mark.parametrize("bits", [*range(1, 17), 32])
def test_round_trip(bits):
    sent = small_model(bits)
    first = to_bytes(sent)
    got = from_bytes(first, small_net())
    a, b = state_of(sent), state_of(got)
    assert list(a) == list(b)
    for name, entry in a.items():
        if entry.weight is not None:
            assert torch.equal(entry.weight.codes, b[name].weight.codes)
            assert torch.equal(entry.weight.scale, b[name].weight.scale) and b[name].weight.bits == bits
        elif entry.role == "quantized":
            assert torch.equal(entry.tensor, b[name].tensor)  # full precision is sent exactly
        elif entry.role == "averaged":
            torch.testing.assert_close(b[name].tensor, entry.tensor, rtol=1e-3, atol=0)
    assert to_bytes(got) == first
    again = small_model(bits)
    load_bytes(again, first)
    assert to_bytes(again) == first
    x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(got.eval()(x), again.eval()(x))


def test_bytes_are_packed_codes_scales_and_a_few_floats(data):
    header, payload = parts(data)
    sizes = {k: v["data_offsets"][1] - v["data_offsets"][0] for k, v in header.items() if k != "__metadata__"}
    assert sizes["0.weight.codes"] == packed_size(135, 4) and sizes["0.weight.scale"] == 4
    assert header["1.weight"]["dtype"] == "F16" and header["1.running_var"]["dtype"] == "F32"
    assert sum(sizes.values()) == len(payload)
    assert not any("num_batches_tracked" in name or "anchor" in name for name in header)
    assert read_header(data)["bits"] == "4" and read_header(data)["gradient_bits"] == "6"
    assert data[:6] == MAGIC == b"FQSSL\0" and struct.unpack_from("<H", data, 6)[0] == VERSION
    assert check_bytes(data) == data[HEAD:]


def test_loading_copies(data):
    model = small_model()
    load_bytes(model, data)
    before = digest(model)
    other = small_model()
    load_bytes(other, data)
    with torch.no_grad():
        for tensor in other.state_dict(keep_vars=True).values():
            tensor.zero_()
    assert digest(model) == before and to_bytes(model) == data


def test_precision_of_activations_travels():
    sent = to_lowbit(small_net(), Precision(4, 8, 6))
    got = from_bytes(to_bytes(sent), small_net())
    assert {m.precision for m in got.modules() if hasattr(m, "precision")} == {Precision(4, 8, 6)}


@pytest.mark.parametrize("bits", [4, 32])
def test_options_travel(bits):
    """Else the receiver computes another function."""
    net = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))
    options = {"weights": "value", "activation_clip": 0.25}
    data = to_bytes(small_model(bits, net, **options))
    told, found, default = small_model(bits, net, **options), from_bytes(data, net), small_model(bits, net)
    load_bytes(told, data)
    x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    want, got, other = (m.eval()(x) for m in (told, found, default))
    assert not torch.allclose(want, other, rtol=1e-2)  # the options matter here
    assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{"weights": "value"}, {"compander": "identity"}, {"activation_clip": 2.0}])
def test_other_options_are_refused(model, options):
    refuses(model, to_bytes(small_model(**options)), "option")


def test_mixed_bitwidths_cannot_be_packed():
    model = small_model(4)
    next(m for m in model.modules() if isinstance(m, LowBitWeight)).bits = 5
    with pytest.raises(ContainerError, match="mixes bitwidths"):
        to_bytes(model)


SCRIPT = """
import hashlib, torch
from torch import nn
from fedqssl.lowbit import Precision, to_bytes, to_lowbit
from fedqssl.models import resnet18
torch.manual_seed(0)
print(hashlib.sha256(to_bytes(to_lowbit(resnet18(width=4, num_classes=3), Precision.for_bits(3)))).hexdigest())
"""


def _run(script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, timeout=600
    )


def test_same_model_same_bytes_in_every_process():
    torch.manual_seed(0)
    net = resnet18(width=4, num_classes=3)
    here = [to_bytes(to_lowbit(net, Precision.for_bits(3))) for _ in range(2)]
    assert here[0] == here[1]
    done = _run(SCRIPT, PYTHONHASHSEED="77")
    assert done.stdout.strip() == hashlib.sha256(here[0]).hexdigest(), done.stderr


def test_size_for_resnet18_is_at_most_3_percent_over_the_codes():
    """Every s >= 2, even when no batch-norm tensor fits float16; one model, its codes replaced for each s."""
    net = resnet18(width=64)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data.normal_()[0] = 1e-7  # lost in float16: all of them travel as float32, the worst case
    full = len(safetensors.torch.save(net.state_dict()))
    tensors = sum(t.numel() * t.element_size() for t in net.state_dict().values())
    model = to_lowbit(net, Precision.for_bits(2))
    weights = [m for m in model.modules() if isinstance(m, LowBitWeight)]
    for bits in range(2, 17):
        for weight in weights:
            weight.bits, weight.gradient_bits = bits, min(bits + 2, 16)
            weight.codes = torch.zeros(packed_size(weight.shape.numel(), bits), dtype=torch.uint8)
        model.meta["fedqssl"] = (Precision.for_bits(bits), LowBitOptions())
        size = len(to_bytes(model))
        assert size <= 1.03 * bits / 32 * min(full, tensors), (bits, size / (bits / 32 * tensors))


def test_the_error_is_one_name():
    assert issubclass(ContainerError, ValueError) and container.ContainerError is ContainerError
