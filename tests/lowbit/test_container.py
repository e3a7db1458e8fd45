"""The model container: round trips, sizes, and one named error for everything that is not the right bytes."""

import hashlib
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

HEAD = 48  # mark 6, version 2, length 8, SHA-256 32


def _net(channels: int = 5) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 7, 3, stride=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(7, 3),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias, std=1e-3)
            module.running_mean.normal_()
            module.running_var.uniform_(1e-9, 1e6)  # beyond float16
    return net


def _model(bits: int = 4, net: nn.Module | None = None, **options) -> nn.Module:
    return to_lowbit(net or _net(), Precision.for_bits(bits), LowBitOptions(**options))


def _digest(model: nn.Module) -> str:
    """Everything the model holds, bit by bit."""
    h = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        h.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def _seal(blob: bytes, version: int = VERSION) -> bytes:
    """A container with a right length and checksum around any blob: what a hostile sender can make."""
    return struct.pack("<6sHQ32s", MAGIC, version, len(blob), hashlib.sha256(blob).digest()) + blob


def _parts(data: bytes) -> tuple[dict, bytes]:
    """The safetensors header and payload of a container."""
    size = struct.unpack_from("<Q", data, HEAD)[0]
    return json.loads(data[HEAD + 8 : HEAD + 8 + size]), data[HEAD + 8 + size :]


def _forge(header: object, payload: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _seal(struct.pack("<Q", len(raw)) + raw + payload)


def _with_tensors(data: bytes, change) -> bytes:
    """The container with its tensors changed by ``change(dict)``, sealed again."""
    tensors = safetensors.torch.load(data[HEAD:])
    change(tensors)
    return _seal(safetensors.torch.save(tensors, metadata=_parts(data)[0]["__metadata__"]))


@pytest.fixture(scope="module")
def data() -> bytes:
    return to_bytes(_model())


@pytest.fixture
def model() -> nn.Module:
    """A target with other weights than the sender's."""
    torch.manual_seed(9)
    net = _net()
    nn.init.normal_(net[0].weight)
    return _model(net=net)


def _refuses(model: nn.Module, data: bytes, match: str | None = None, **kw) -> None:
    before = _digest(model)
    with pytest.raises(ContainerError, match=match):
        load_bytes(model, data, **kw)
    assert _digest(model) == before


@pytest.mark.parametrize("bits", [*range(1, 17), 32])
def test_round_trip(bits):
    sent = _model(bits)
    first = to_bytes(sent)
    got = from_bytes(first, _net())
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
    again = _model(bits)
    load_bytes(again, first)
    assert to_bytes(again) == first
    x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(got.eval()(x), again.eval()(x))


def test_bytes_are_packed_codes_scales_and_a_few_floats(data):
    header, payload = _parts(data)
    sizes = {k: v["data_offsets"][1] - v["data_offsets"][0] for k, v in header.items() if k != "__metadata__"}
    assert sizes["0.weight.codes"] == packed_size(135, 4) and sizes["0.weight.scale"] == 4
    assert header["1.weight"]["dtype"] == "F16" and header["1.running_var"]["dtype"] == "F32"
    assert sum(sizes.values()) == len(payload)
    assert not any("num_batches_tracked" in name or "anchor" in name for name in header)
    assert read_header(data)["bits"] == "4" and read_header(data)["gradient_bits"] == "6"
    assert data[:6] == MAGIC == b"FQSSL\0" and struct.unpack_from("<H", data, 6)[0] == VERSION
    assert check_bytes(data) == data[HEAD:]


def test_loading_copies(data):
    model = _model()
    load_bytes(model, data)
    before = _digest(model)
    other = _model()
    load_bytes(other, data)
    with torch.no_grad():
        for tensor in other.state_dict(keep_vars=True).values():
            tensor.zero_()
    assert _digest(model) == before and to_bytes(model) == data


def test_precision_of_activations_travels():
    sent = to_lowbit(_net(), Precision(4, 8, 6))
    got = from_bytes(to_bytes(sent), _net())
    assert {m.precision for m in got.modules() if hasattr(m, "precision")} == {Precision(4, 8, 6)}


@pytest.mark.parametrize("bits", [4, 32])
def test_options_travel(bits):
    """Else the receiver computes another function."""
    net = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))
    options = {"weights": "value", "activation_clip": 0.25}
    data = to_bytes(_model(bits, net, **options))
    told, found, default = _model(bits, net, **options), from_bytes(data, net), _model(bits, net)
    load_bytes(told, data)
    x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    want, got, other = (m.eval()(x) for m in (told, found, default))
    assert not torch.allclose(want, other, rtol=1e-2)  # the options matter here
    assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{"weights": "value"}, {"compander": "identity"}, {"activation_clip": 2.0}])
def test_other_options_are_refused(model, options):
    _refuses(model, to_bytes(_model(**options)), "option")


def test_mixed_bitwidths_cannot_be_packed():
    model = _model(4)
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
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, timeout=120
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


def test_truncated_at_any_offset(model, data):
    before = _digest(model)
    for end in range(len(data)):
        with pytest.raises(ContainerError):
            load_bytes(model, data[:end])
    for extra in (b"\0", data):
        with pytest.raises(ContainerError, match="truncated or padded"):
            load_bytes(model, data + extra)
    assert _digest(model) == before


def test_every_single_bit_flip_is_noticed(model, data):
    before = _digest(model)
    header_end = HEAD + 8 + struct.unpack_from("<Q", data, HEAD)[0]
    payload = random.Random(0).sample(range(header_end, len(data)), 60)
    for at in [*range(HEAD + 8), *range(HEAD + 8, header_end, 7), *payload]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(ContainerError):
                load_bytes(model, bytes(flipped))
    assert _digest(model) == before


def test_versions(model, data):
    for version, advice in ((VERSION + 1, "update fedqssl"), (65535, "update fedqssl"), (0, "version 0, but this is")):
        _refuses(model, _seal(data[HEAD:], version), advice)
    with pytest.raises(ContainerError) as error:
        check_bytes(_seal(data[HEAD:], 0))
    assert "update" not in str(error.value)


def test_oversized(model, data):
    _refuses(model, data, f"{len(data)} bytes are more than the {len(data) - 1} allowed", max_bytes=len(data) - 1)
    with pytest.raises(ContainerError, match="more than"):
        from_bytes(data, _net(), max_bytes=len(data) - 1)
    target = _model()
    load_bytes(target, data, max_bytes=len(data))
    assert to_bytes(target) == data


def test_a_limit_above_the_default_is_honoured(data, monkeypatch):
    monkeypatch.setattr(check_bytes, "__defaults__", (len(data) - 1,))  # stands for data above MAX_BYTES
    load_bytes(_model(), data, max_bytes=len(data))
    from_bytes(data, _net(), max_bytes=len(data))


def _foreign() -> dict[str, bytes]:
    rng = random.Random(0)
    archive, saved = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("model", b"x" * 100)
    torch.save(_net().state_dict(), saved)
    return {
        "empty": b"",
        "one byte": b"F",
        "only the mark": MAGIC,
        "mark and noise": MAGIC + rng.randbytes(200),
        "random": rng.randbytes(5000),
        "zeros": bytes(1000),
        "zip": archive.getvalue(),
        "torch.save": saved.getvalue(),
        "pickle": pickle.dumps({"a": 1}),
        "safetensors": safetensors.torch.save(_net().state_dict()),
        "text": b"FQSSL\n" * 30,
    }


@pytest.mark.parametrize("name", list(_foreign()))
def test_foreign_bytes(model, name):
    foreign = _foreign()[name]
    _refuses(model, foreign)
    with pytest.raises(ContainerError):
        from_bytes(foreign, _net())
    _refuses(model, _seal(foreign))  # even with a right length and checksum
    with pytest.raises(ContainerError):
        from_bytes(_seal(foreign), _net())


def test_wrong_architecture_and_bits(model):
    _refuses(model, to_bytes(_model(net=_net(6))), "architecture")
    _refuses(model, to_bytes(_model(net=nn.Sequential(_net()))), "architecture")
    _refuses(model, to_bytes(_model(5)), "bits 5 in the bytes, 4 in the model")
    _refuses(model, to_bytes(_model(32)), "bits 32")
    _refuses(model, to_bytes(to_lowbit(_net(), Precision(4, 4, 8))), "gradient bits 8")
    _refuses(_model(32), to_bytes(_model(4)), "bits 4")
    with pytest.raises(ContainerError, match="architecture"):
        from_bytes(to_bytes(_model()), _net(6))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["1.running_mean", "8.bias", "0.weight.scale"])
def test_not_finite_floats(model, data, name, bad):
    def poison(tensors):
        tensors[name][0] = bad

    _refuses(model, _with_tensors(data, poison), f"'{name}' holds values that are not finite")


@pytest.mark.parametrize("scale", [-0.1, 1.0, 2.0, 1e30])
def test_scale_out_of_range(model, data, scale):
    def change(tensors):
        tensors["0.weight.scale"][0] = scale

    _refuses(model, _with_tensors(data, change), r"'0\.weight\.scale' is .*outside its range")


def test_tensors_that_are_missing_or_of_another_kind(model, data):
    def swap(name, make):
        def change(tensors):
            tensors[name] = make(tensors[name])

        return _with_tensors(data, change)

    for name in ("0.weight.codes", "3.weight.scale", "4.bias"):
        _refuses(model, _with_tensors(data, lambda t, name=name: t.pop(name)), f"'{name}' is missing")
    _refuses(model, swap("0.weight.codes", lambda t: t[:-1].clone()), "shape")
    _refuses(model, swap("0.weight.codes", lambda t: t.to(torch.int8)), "int8")
    _refuses(model, swap("8.bias", lambda t: t.double()), "float64")
    _refuses(model, swap("8.bias", lambda t: t[:1].clone()), "shape")
    _refuses(model, swap("0.weight.scale", lambda t: t.repeat(2)), "shape")


def test_all_or_nothing(model, data):
    """The last tensor in order is the bad one; nothing before it may have been written."""
    last = list(state_of(model))[-1]

    def poison(tensors):
        tensors[last].fill_(float("nan"))

    _refuses(model, _with_tensors(data, poison), last)


def _describe(data: bytes, **change) -> bytes:
    """The container with entries of its description changed."""
    header, payload = _parts(data)
    description = json.loads(header["__metadata__"]["fedqssl"])
    description.update(change)
    header["__metadata__"]["fedqssl"] = json.dumps(description)
    return _forge(header, payload)


@pytest.mark.parametrize(
    "change",
    [
        {"bits": "99"},
        {"bits": "four"},
        {"bits": None},
        {"gradient_bits": "0"},
        {"options": "{"},
        {"options": "[1]"},
        {"options": '{"no_such_option": 1}'},
        {"options": '{"compander": {}}'},
        {"options": '{"activation_clip": "wide"}'},
        {"fingerprint": "0" * 16},
    ],
)
def test_descriptions_that_make_no_sense(data, change):
    with pytest.raises(ContainerError):
        from_bytes(_describe(data, **change), _net())


@pytest.mark.parametrize("header", [b"[" * 200_000, b'{"__metadata__":' + b"[" * 200_000], ids=["list", "metadata"])
def test_nested_headers_raise_the_same_error(model, header):
    _refuses(model, _forge(header))


def test_nested_options_raise_the_same_error(data):
    with pytest.raises(ContainerError):
        from_bytes(_describe(data, options="[" * 200_000), _net())


TERA = 1 << 42
CLAIMS = [
    {"dtype": "U8", "shape": [TERA], "data_offsets": [0, TERA]},
    {"dtype": "F32", "shape": [TERA // 4], "data_offsets": [0, TERA]},
    {"dtype": "F32", "shape": [1 << 32, 1 << 32, 1 << 32], "data_offsets": [0, 8]},
    {"dtype": "U8", "shape": [TERA], "data_offsets": [0, 8]},
    {"dtype": "U8", "shape": [0, TERA], "data_offsets": [0, 0]},
    {"dtype": "U8", "shape": [8], "data_offsets": [TERA, TERA + 8]},
]
MEMORY_SCRIPT = """
import sys, pickle, torch, tracemalloc
from fedqssl.lowbit import ContainerError, Precision, load_bytes, to_lowbit
from torch import nn

def peak():  # kB, of address space: even memory that is reserved and never touched
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmPeak")))

cases, right = pickle.load(sys.stdin.buffer)
model = to_lowbit(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU()), Precision.for_bits(4))
load_bytes(model, right)
before = peak()
tracemalloc.start()
for case in cases:
    try:
        load_bytes(model, case)
    except ContainerError:
        continue
    sys.exit("accepted")
print(peak() - before, tracemalloc.get_traced_memory()[1] // 1024)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the kernel's account of memory")
def test_claims_of_terabytes_allocate_nothing():
    small = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    right = to_bytes(to_lowbit(small, Precision.for_bits(4)))
    metadata = _parts(right)[0]["__metadata__"]
    cases = [
        _forge({"__metadata__": metadata, "0.weight.codes": claim}, bytes(min(8, claim["data_offsets"][1] % TERA)))
        for claim in CLAIMS
    ]
    cases += [_seal(struct.pack("<Q", size) + b"{}" + bytes(100)) for size in (TERA, 2**63, 2**64 - 1)]
    cases.append(struct.pack("<6sHQ32s", MAGIC, VERSION, TERA, bytes(32)) + bytes(100))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT], input=pickle.dumps((cases, right)), capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    reserved, traced = map(int, done.stdout.split())
    assert reserved < 64 << 10 and traced < 4 << 10  # kB


_TARGET = _model()
_DATA = to_bytes(_TARGET)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_mutations_raise_nothing_but_the_named_error(drawn):
    """Sealed and unsealed: with a right checksum a mutation may still be a valid model, then it must be finite."""
    data = bytearray(_DATA)
    for _ in range(drawn.draw(st.integers(1, 4))):
        start = drawn.draw(st.integers(0, len(data)))
        stop = drawn.draw(st.integers(start, min(start + 12, len(data))))
        data[start:stop] = drawn.draw(st.binary(max_size=12))
    sealed = drawn.draw(st.booleans())
    mutated = _seal(bytes(data[HEAD:])) if sealed else bytes(data)
    load_bytes(_TARGET, _DATA)
    before = _digest(_TARGET)
    try:
        load_bytes(_TARGET, mutated)
    except ContainerError:
        assert _digest(_TARGET) == before
    else:
        assert sealed or mutated == _DATA
        assert all(bool(torch.isfinite(e.parameters_x()).all()) for e in state_of(_TARGET).values())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(flips=st.lists(st.integers(0, 8 * 1500), min_size=1, max_size=3))
def test_sealed_flips_in_the_header_raise_nothing_but_the_named_error(flips):
    blob = bytearray(_DATA[HEAD:])
    for flip in flips:
        blob[flip // 8 % len(blob)] ^= 1 << flip % 8
    try:
        from_bytes(_seal(bytes(blob)), _net())
    except ContainerError as error:
        assert str(error)


def test_the_error_is_one_name():
    assert issubclass(ContainerError, ValueError) and container.ContainerError is ContainerError
