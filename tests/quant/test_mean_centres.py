"""Centres that are means of cells of equal weight: as defined, without bias, backends bit for bit.

The definition is recomputed entry by entry in Python: keys by ``struct``, cells in exact integers, means by ``math.fsum``.
"""

import math
import struct
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.lowbit import LowBitOptions
from fedqssl.quant import quantile_quantize, quantile_round
from fedqssl.quant.kernels import native, use

BACKENDS = ["torch", "native"] if native.available() else ["torch"]
needs_native = pytest.mark.skipif(not native.available(), reason=native.REASON)
KINDS = ("normal", "student", "cauchy", "relu", "wide", "positive", "whole numbers", "denormal", "zeros", "constant")


def samples(kind: str, n: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    x = {
        "normal": lambda: rng.standard_normal(n),
        "student": lambda: rng.standard_t(3, size=n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "relu": lambda: np.maximum(rng.standard_normal(n), 0),
        "wide": lambda: rng.standard_normal(n) * 10.0 ** rng.integers(-37, 37, n),
        "positive": lambda: np.exp(rng.standard_normal(n)),
        "whole numbers": lambda: np.rint(3 * rng.standard_normal(n)),
        "denormal": lambda: rng.standard_normal(n) * 1e-40,
        "zeros": lambda: rng.choice([0.0, -0.0, 0.5, -2.0], n),
        "constant": lambda: np.full(n, -0.3),
    }[kind]()
    return torch.from_numpy(x.astype(np.float32))


def _float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def _keys(x: torch.Tensor) -> list[int]:
    return [bits >> 16 for bits in x.numpy().view(np.uint32).ravel().tolist()]


def defined(x: torch.Tensor, bits: int) -> dict[int, int]:
    """The cell of every key that occurs, for up to 6 bits (where a table has one entry per key)."""
    counts = Counter(_keys(x))

    def weight(key: int) -> float:
        if not key & 0x7F80:
            return 0.0
        return math.sqrt(counts[key] * abs(_float(key << 16 | 0xFFFF) - _float(key << 16)))

    ascending = sorted(counts, key=lambda key: (key - 0x8000 + 1) * -1 if key & 0x8000 else key)
    heaviest = max(map(weight, ascending)) or 1.0
    units = {key: round(weight(key) * (2.0**24 / heaviest)) for key in ascending}
    total, before, cells = max(sum(units.values()), 1), 0, {}
    for key in ascending:
        cells[key] = min((2 * before + units[key]) * 2**bits // (2 * total), 2**bits - 1)
        before += units[key]
    return cells


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_cells_have_equal_weight_and_stand_for_their_means(kind, backend):
    for bits in (1, 3, 6):
        x = samples(kind, 5000, seed=bits)
        cells = defined(x, bits)
        with use(backend):
            q = quantile_quantize(x, bits, centres="mean")
        codes = [cells[key] for key in _keys(x)]
        assert q.codes.flatten().tolist() == codes
        members: dict[int, list[float]] = {}
        for value, code in zip(x.tolist(), codes, strict=True):
            members.setdefault(code, []).append(value)
        for code, values in members.items():
            mean, size = math.fsum(values) / len(values), math.fsum(map(abs, values)) / len(values)
            assert float(q.codebook[code]) == pytest.approx(mean, abs=2**-7 * size + 2.0**-126)
        assert bool((q.codebook.diff() >= 0).all())


@pytest.mark.parametrize("kind", ["normal", "student", "positive"])
@pytest.mark.parametrize("bits", [4, 6, 8, 10])
def test_sums_are_kept_and_the_error_is_far_below_that_of_quantiles(kind, bits):
    x = samples(kind, 200_000, seed=3)
    mean, quantile = quantile_round(x, bits, centres="mean"), quantile_round(x, bits)
    drift = [abs(float((q - x).double().sum())) / float(x.double().abs().sum()) for q in (mean, quantile)]
    error = [float((q - x).double().square().mean()) for q in (mean, quantile)]
    assert drift[0] < 2e-4
    assert error[0] < 0.6 * error[1]
    kept = float((mean * x).double().sum() / x.double().square().sum())  # 1 - error, as for any means of cells
    assert kept == pytest.approx(1 - error[0] / float(x.double().square().mean()), abs=1e-3)


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree_bit_for_bit(kind):
    for bits in (1, 2, 4, 6, 8, 10, 12, 14, 16):
        x = samples(kind, 2**bits + 4099, seed=bits)
        _assert_backends_equal(x, bits)


@needs_native
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    x=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    bits=st.integers(1, 7),
)
def test_backends_agree_on_any_floats(x, bits):
    _assert_backends_equal(torch.tensor(x, dtype=torch.float32).repeat(33), bits)


def _assert_backends_equal(x: torch.Tensor, bits: int) -> None:
    found = []
    for backend in ("torch", "native"):
        with use(backend):
            q, rounded = quantile_quantize(x, bits, centres="mean"), quantile_round(x, bits, centres="mean")
        assert torch.equal(q.dequantize().view(torch.int32), rounded.view(torch.int32))
        found.append((q.codes.int(), q.codebook.view(torch.int32), rounded.view(torch.int32)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_few_entries_are_kept_exactly():
    x = samples("student", 60)
    assert torch.equal(quantile_round(x, 6, centres="mean"), x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad, backend):
    x = samples("normal", 1000)
    x[17] = bad
    with use(backend), pytest.raises(ValueError, match="NaN or infinity"):
        quantile_quantize(x, 4, centres="mean")


def test_means_take_no_stochastic_rounding():
    with pytest.raises(ValueError, match="no stochastic rounding"):
        quantile_quantize(samples("normal", 100), 4, rounding="stochastic", centres="mean")
    with pytest.raises(ValueError, match="'quantile' or 'mean', not 'median'"):
        quantile_round(samples("normal", 100), 4, centres="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gradient_rounding='nearest' only"):
        LowBitOptions(gradient_centres="mean", gradient_rounding="stochastic")
    with pytest.raises(ValueError, match="'quantile' or 'mean', not 'median'"):
        LowBitOptions(gradient_centres="median")  # type: ignore[arg-type]


def test_options_of_before_are_written_as_before():
    assert "gradient_centres" not in LowBitOptions().to_json()
    options = LowBitOptions(gradient_centres="mean")
    assert LowBitOptions.from_json(options.to_json()) == options
