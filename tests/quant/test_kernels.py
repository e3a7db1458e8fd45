"""Which backend runs, how it is chosen, and the integer convolution with its start-up probe."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedqssl.quant import kernels, pack
from fedqssl.quant.kernels import backend_name, describe, intconv, native, ops, reference, use

needs_native = pytest.mark.skipif(not native.available(), reason=native.REASON)
needs_integers = pytest.mark.skipif(not intconv.available(), reason="the probe found the integer convolution unusable")


def _python(code: str, kernels_variable: str | None) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k != "FEDQSSL_KERNELS"}
    if kernels_variable is not None:
        env["FEDQSSL_KERNELS"] = kernels_variable
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)


def test_use_chooses_and_restores():
    before = backend_name()
    with use("torch"):
        assert backend_name() == "torch" and ops() is reference
        with use("auto"):
            assert backend_name() == ("native" if native.available() else "torch")
        assert ops(torch.zeros(1)) is reference
    assert backend_name() == before
    with pytest.raises(KeyError), use("torch"):
        raise KeyError
    assert backend_name() == before


def test_use_refuses_unknown_names():
    with pytest.raises(ValueError, match="'cuda': choose one of auto, native, torch"), use("cuda"):
        pass


def test_tensors_elsewhere_get_plain_torch():
    with use("auto"):
        assert ops(torch.zeros(1, device="meta")) is reference
        assert ops(torch.zeros(1), None, torch.zeros(1, device="meta")) is reference


def test_without_compiled_kernels_torch_takes_over(monkeypatch):
    codes = torch.arange(11) % 8
    want = pack(codes, 3)
    monkeypatch.setattr(native, "_LIBRARY", None)
    monkeypatch.setattr(native, "REASON", "not built")
    assert backend_name() == "torch" and torch.equal(pack(codes, 3), want)
    assert describe()["native_available"] is False and describe()["native_detail"] == "not built"


def test_asking_for_compiled_kernels_that_are_not_there_raises(monkeypatch):
    monkeypatch.setattr(native, "_LIBRARY", None)
    monkeypatch.setattr(native, "REASON", "not built")
    with pytest.raises(ValueError, match="not built"), use("native"):
        pass


def test_describe_says_what_runs_and_why():
    with use("torch"):
        found = describe()
    assert found["backend"] == found["choice"] == "torch"
    assert found["native_available"] is native.available() and found["native_detail"] == native.REASON
    assert found["integer_convolution"] is intconv.available()
    assert found["integer_convolution_detail"] == intconv.detail() != ""


SHOW = "from fedqssl.quant.kernels import backend_name, describe; print(backend_name(), describe()['choice'])"


def test_environment_variable():
    done = _python(SHOW, " Torch ")
    assert done.returncode == 0 and done.stdout.split() == ["torch", "torch"], done.stderr


def test_bad_environment_variable_is_a_clear_error():
    done = _python(SHOW, "fast")
    assert done.returncode != 0
    assert "FEDQSSL_KERNELS='fast': choose one of auto, native, torch, triton" in done.stderr


@needs_native
def test_every_reference_kernel_has_a_compiled_twin():
    shared = "pack unpack quantize_pack unpack_affine unpack_table key_histogram quantile_table table_apply code_apply"
    for name in [*shared.split(), "mean_table"]:
        assert callable(getattr(native, name)) and callable(getattr(reference, name))
    assert {native.NAME, reference.NAME} == {"native", "torch"}
    assert set(kernels.__all__) >= {"ops", "use", "describe"}


@needs_native
@pytest.mark.parametrize("bits", range(1, 17))
def test_unpack_affine_and_table_agree_bit_for_bit(bits):
    generator = torch.Generator().manual_seed(bits)
    for n in (0, 1, 9, 1023, 5001):
        codes = torch.randint(0, 2**bits, (n,), generator=generator)
        packed = pack(codes, bits)
        table = torch.randn(2**bits, generator=generator)
        a = reference.unpack_affine(packed, bits, n, 0.123, -4.56)
        assert torch.equal(a, native.unpack_affine(packed, bits, n, 0.123, -4.56))
        looked_up = native.unpack_table(packed, bits, n, table)
        assert torch.equal(looked_up, table[codes])
        assert torch.equal(looked_up, reference.unpack_table(packed, bits, n, table))


@needs_native
def test_key_histogram_agrees_and_counts_everything():
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(0))
    keys = np.bincount(x.numpy().view(np.uint32) >> 16, minlength=65536)
    for backend in (native, reference):
        hist, low, high = backend.key_histogram(x)
        np.testing.assert_array_equal(hist.numpy(), keys)
        assert (low, high) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize(
    ("x_max", "w_max", "expected"),
    [
        (255, 64, True),  # 2 * 255 * 64 = 32640
        (255, 65, False),  # 33150
        (129, 127, True),  # 32766
        (130, 127, False),  # 33020
        (128, 127, True),
        (256, 1, False),  # not uint8
        (1, 128, False),  # not int8
        (255, 127, False),
        (15, 15, True),
        (0, 0, True),
    ],
)
def test_fits_is_the_16_bit_bound_of_a_pair(x_max, w_max, expected):
    assert intconv.fits(x_max, w_max) is expected
    if x_max <= 255 and w_max <= 127:
        assert expected is (2 * x_max * w_max < 2**15)


@needs_integers
@pytest.mark.parametrize(("x_max", "w_max"), [(255, 64), (129, 127), (127, 127), (255, 1), (15, 15), (3, 3), (1, 1)])
@pytest.mark.parametrize(
    ("channels", "out", "groups", "stride", "padding", "dilation", "kernel"),
    [
        (16, 8, 1, 1, 1, 1, 3),
        (3, 5, 1, 2, 0, 1, 3),
        (8, 8, 8, 1, 1, 1, 3),
        (12, 6, 2, 2, 2, 2, 3),
        (64, 7, 1, 1, 0, 1, 1),
    ],
)
def test_integer_convolution_is_exact_where_it_fits(
    x_max, w_max, channels, out, groups, stride, padding, dilation, kernel
):
    assert intconv.fits(x_max, w_max)
    generator = torch.Generator().manual_seed(x_max + w_max)
    x = torch.randint(0, x_max + 1, (2, channels, 7, 6), generator=generator)
    w = torch.randint(-w_max, w_max + 1, (out, channels // groups, kernel, kernel), generator=generator)
    x[0], w[0], w[1] = x_max, w_max, -w_max  # the largest pairs of products
    steps = (stride,) * 2, (padding,) * 2, (dilation,) * 2, groups
    want = F.conv2d(x.double(), w.double(), None, *steps)
    assert float(want.abs().max()) < 2**24
    codes = x.to(torch.uint8).contiguous(memory_format=torch.channels_last)
    packed = [intconv.prepack(w.to(torch.int8), *steps, scale, codes.shape) for scale in (1.0, 0.25)]
    got = intconv.conv2d(codes, packed[0], *steps)
    assert got.dtype == torch.float32 and torch.equal(got.double(), want)
    assert torch.equal(intconv.conv2d(codes, packed[1], *steps).double(), want / 4)


@needs_integers
@pytest.mark.parametrize("two_parts", [False, True])
@pytest.mark.parametrize("x_max", [255, 127, 3])
@pytest.mark.parametrize(
    ("channels", "out", "stride", "padding", "dilation", "kernel"),
    [(16, 8, 1, 1, 1, 3), (3, 5, 2, 0, 1, 3), (8, 1, 1, 2, 2, 3), (64, 7, 1, 0, 1, 1)],
)
def test_convolution_with_weights_of_8_bits_is_exact(
    two_parts, x_max, channels, out, stride, padding, dilation, kernel, monkeypatch
):
    """In one part, where the CPU may, and in two, which every CPU may: the same floats."""
    if two_parts:
        monkeypatch.setattr(intconv, "wide", lambda: False)
    generator = torch.Generator().manual_seed(x_max)
    x = torch.randint(0, x_max + 1, (3, channels, 7, 6), generator=generator)
    codes = torch.randint(0, 256, (out, channels, kernel, kernel), generator=generator)
    x[0], codes[0], codes[-1, ::2] = x_max, 0, 255
    steps = (stride,) * 2, (padding,) * 2, (dilation,) * 2
    want = F.conv2d(x.double(), 2 * codes.double() - 255, None, *steps)
    x = x.to(torch.uint8).contiguous(memory_format=torch.channels_last)
    packed = intconv.prepack_odd(codes.to(torch.uint8), *steps, x_max, 0.3, x.shape)
    parts = intconv.conv2d(x, packed.weights, *steps, 1)
    rows = parts.permute(0, 2, 3, 1).flatten(0, 2).contiguous()
    for backend in (reference, *([native] if native.available() else [])):
        got = backend.odd_sums(rows, packed.factor, packed.scale, torch.empty(len(rows), out))
        expected = want.permute(0, 2, 3, 1).flatten(0, 2).float() * torch.tensor(0.3)
        assert torch.equal(got, expected)
    assert parts.shape[1] == (2 * out if two_parts and x_max == 255 else packed.weights.scales.numel())


def test_a_probe_that_saturates_cuts_weights_of_8_bits_in_two(monkeypatch):
    """A kernel that is exact up to 7 bits only must not be given more."""

    def saturating(x, w, *rest):
        return F.conv2d(x.float(), w.float().clamp(-127, 127), None, *rest) * 0.5

    intconv.wide.cache_clear()
    try:
        monkeypatch.setattr(intconv, "available", lambda: True)
        monkeypatch.setattr(intconv, "prepack", lambda w, *rest: w)
        monkeypatch.setattr(intconv, "conv2d", saturating)
        assert not intconv.wide() and "two parts" in intconv.wide_detail()
        codes = torch.arange(256).view(-1, 1, 1, 1).to(torch.uint8)
        packed = intconv.prepack_odd(codes, (1, 1), (1, 1), (1, 1), 255, 1.0, (1, 1, 1, 1))
        w = torch.as_tensor(packed.weights).flatten().int()
        assert torch.equal(4 * w[:256] + w[256:], 2 * torch.arange(256, dtype=torch.int32) - 255)
        assert int(w.abs().max()) == 64 and intconv.fits(255, 64)
    finally:
        monkeypatch.undo()
        intconv.wide.cache_clear()
    assert intconv.wide_detail()


def test_a_probe_that_fails_switches_the_integer_convolution_off(monkeypatch):
    """A kernel that saturates, or is not there, must be noticed."""
    intconv._probe.cache_clear()
    try:
        monkeypatch.setattr(intconv, "conv2d", lambda x, w, *rest: F.conv2d(x.float(), w.float().clamp(-100, 100)))
        assert not intconv.available()

        def missing(*_):
            raise NotImplementedError("no such operator")

        intconv._probe.cache_clear()
        monkeypatch.setattr(intconv, "conv2d", missing)
        assert not intconv.available() and "no such operator" in intconv.detail()
    finally:
        monkeypatch.undo()
        intconv._probe.cache_clear()
    assert "probe" in intconv.detail() or "operator" in intconv.detail()
