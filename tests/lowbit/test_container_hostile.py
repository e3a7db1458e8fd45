"""The model container refuses everything that is not the right bytes, with one named error, and loads all or nothing."""

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

from fedqssl.header import Made
from fedqssl.lowbit import (
    ContainerError,
    Precision,
    from_bytes,
    load_bytes,
    to_bytes,
    to_lowbit,
)
from fedqssl.lowbit.container import MAGIC, VERSION, check_bytes
from fedqssl.lowbit.policy import state_of
from forging import HEAD, digest, forge, parts, refuses, seal, small_model, small_net, with_tensors


def test_truncated_at_any_offset(model, data):
    before = digest(model)
    for end in range(len(data)):
        with pytest.raises(ContainerError):
            load_bytes(model, data[:end])
    for extra in (b"\0", data):
        with pytest.raises(ContainerError, match="truncated or padded"):
            load_bytes(model, data + extra)
    assert digest(model) == before


def test_every_single_bit_flip_is_noticed(model, data):
    before = digest(model)
    header_end = HEAD + 8 + struct.unpack_from("<Q", data, HEAD)[0]
    payload = random.Random(0).sample(range(header_end, len(data)), 60)
    for at in [*range(HEAD + 8), *range(HEAD + 8, header_end, 7), *payload]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(ContainerError):
                load_bytes(model, bytes(flipped))
    assert digest(model) == before


def test_versions(model, data):
    for version, advice in (
        (VERSION + 1, "update fedqssl"),
        (65535, "update fedqssl"),
        (0, "version 0, but this fedqssl reads"),
    ):
        refuses(model, seal(data[HEAD:], version), advice)
    with pytest.raises(ContainerError) as error:
        check_bytes(seal(data[HEAD:], 0))
    assert "update" not in str(error.value)


def test_oversized(model, data):
    refuses(model, data, f"{len(data):,} bytes are more than the {len(data) - 1:,} allowed", max_bytes=len(data) - 1)
    with pytest.raises(ContainerError, match="more than"):
        from_bytes(data, small_net(), max_bytes=len(data) - 1)
    target = small_model()
    load_bytes(target, data, max_bytes=len(data))
    assert to_bytes(target) == data


def test_a_limit_above_the_default_is_honoured(data, monkeypatch):
    monkeypatch.setattr(check_bytes, "__defaults__", (len(data) - 1,))  # stands for data above MAX_BYTES
    load_bytes(small_model(), data, max_bytes=len(data))
    from_bytes(data, small_net(), max_bytes=len(data))


def _foreign() -> dict[str, bytes]:
    rng = random.Random(0)
    archive, saved = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("model", b"x" * 100)
    torch.save(small_net().state_dict(), saved)
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
        "safetensors": safetensors.torch.save(small_net().state_dict()),
        "text": b"FQSSL\n" * 30,
    }


@pytest.mark.parametrize("name", list(_foreign()))
def test_foreign_bytes(model, name):
    foreign = _foreign()[name]
    refuses(model, foreign)
    with pytest.raises(ContainerError):
        from_bytes(foreign, small_net())
    refuses(model, seal(foreign))  # even with a right length and checksum
    with pytest.raises(ContainerError):
        from_bytes(seal(foreign), small_net())


def test_wrong_architecture_and_bits(model):
    refuses(model, to_bytes(small_model(net=small_net(6))), "architecture")
    refuses(model, to_bytes(small_model(net=nn.Sequential(small_net()))), "architecture")
    refuses(model, to_bytes(small_model(5)), "bits 5 in the bytes, 4 in the model")
    refuses(model, to_bytes(small_model(32)), "bits 32")
    refuses(model, to_bytes(to_lowbit(small_net(), Precision(4, 4, 8))), "gradient bits 8")
    refuses(small_model(32), to_bytes(small_model(4)), "bits 4")
    with pytest.raises(ContainerError, match="architecture"):
        from_bytes(to_bytes(small_model()), small_net(6))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["1.running_mean", "8.bias", "0.weight.scale"])
def test_not_finite_floats(model, data, name, bad):
    def poison(tensors):
        tensors[name][0] = bad

    refuses(model, with_tensors(data, poison), f"'{name}' holds values that are not finite")


@pytest.mark.parametrize("scale", [-0.1, 1.0, 2.0, 1e30])
def test_scale_out_of_range(model, data, scale):
    def change(tensors):
        tensors["0.weight.scale"][0] = scale

    refuses(model, with_tensors(data, change), r"'0\.weight\.scale' is .*outside its range")


def test_tensors_that_are_missing_or_of_another_kind(model, data):
    def swap(name, make):
        def change(tensors):
            tensors[name] = make(tensors[name])

        return with_tensors(data, change)

    for name in ("0.weight.codes", "3.weight.scale", "4.bias"):
        refuses(model, with_tensors(data, lambda t, name=name: t.pop(name)), f"'{name}' is missing")
    refuses(model, swap("0.weight.codes", lambda t: t[:-1].clone()), "shape")
    refuses(model, swap("0.weight.codes", lambda t: t.to(torch.int8)), "int8")
    refuses(model, swap("8.bias", lambda t: t.double()), "float64")
    refuses(model, swap("8.bias", lambda t: t[:1].clone()), "shape")
    refuses(model, swap("0.weight.scale", lambda t: t.repeat(2)), "shape")


def test_all_or_nothing(model, data):
    """The last tensor in order is the bad one; nothing before it may have been written."""
    last = list(state_of(model))[-1]

    def poison(tensors):
        tensors[last].fill_(float("nan"))

    refuses(model, with_tensors(data, poison), last)


def _describe(data: bytes, **change) -> bytes:
    """The container with entries of its description changed."""
    header, payload = parts(data)
    description = json.loads(header["__metadata__"]["fedqssl"])
    description.update(change)
    header["__metadata__"]["fedqssl"] = json.dumps(description)
    return forge(header, payload)


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
        from_bytes(_describe(data, **change), small_net())


@pytest.mark.parametrize("header", [b"[" * 200_000, b'{"__metadata__":' + b"[" * 200_000], ids=["list", "metadata"])
def test_nested_headers_raise_the_same_error(model, header):
    refuses(model, forge(header))


def test_nested_options_raise_the_same_error(data):
    with pytest.raises(ContainerError):
        from_bytes(_describe(data, options="[" * 200_000), small_net())


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
    metadata = parts(right)[0]["__metadata__"]
    cases = [
        forge({"__metadata__": metadata, "0.weight.codes": claim}, bytes(min(8, claim["data_offsets"][1] % TERA)))
        for claim in CLAIMS
    ]
    cases += [seal(struct.pack("<Q", size) + b"{}" + bytes(100)) for size in (TERA, 2**63, 2**64 - 1)]
    cases.append(struct.pack("<6sHQ32s", MAGIC, VERSION, TERA, bytes(32)) + bytes(100))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT], input=pickle.dumps((cases, right)), capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()
    reserved, traced = map(int, done.stdout.split())
    assert reserved < 64 << 10 and traced < 4 << 10  # kB


_TARGET = small_model()
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
    mutated = seal(bytes(data[HEAD:])) if sealed else bytes(data)
    load_bytes(_TARGET, _DATA)
    before = digest(_TARGET)
    try:
        load_bytes(_TARGET, mutated)
    except ContainerError:
        assert digest(_TARGET) == before
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
        from_bytes(seal(bytes(blob)), small_net())
    except ContainerError as error:
        assert str(error)


def test_a_description_is_measured_before_it_is_read(model):
    """A list of 30 MB as the description took 870 MB of memory before it was refused."""
    code = "import resource, sys; from fedqssl.lowbit.container import *; data = sys.stdin.buffer.read(); "
    code += "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    code += "try: read_header(data)\nexcept ContainerError as error: print(error)\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=forge(b"[" + b"[]," * 10_000_000 + b"[]]"), capture_output=True, check=True
    )
    said, grown = done.stdout.decode().splitlines()
    assert "a description of 30,000,004 bytes" in said and int(grown) < 100_000  # KiB; the file itself twice
    refuses(model, forge(b"[[], []]"), "description cannot be read")


def test_what_was_made_here_is_known_and_its_parts_are_not():
    """Only the very bytes of a container skip the checksum, also in a worker; whatever is made of them is looked at."""
    data = to_bytes(small_model())
    assert type(data) is Made and type(pickle.loads(pickle.dumps(data))) is Made
    for part in (data[:-1] + b"x", bytes(bytearray(data)), data.replace(b"\0", b"\1"), b"".join([data[:9], data[9:]])):
        assert type(part) is bytes
    with pytest.raises(ContainerError, match="checksum"):
        check_bytes(data[:-1] + bytes([data[-1] ^ 1]))
