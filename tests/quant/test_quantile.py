"""Quantile quantization (PAPER-TO-CODE section 5): centres as defined, the fast method's bounds, backends bit for bit.

The definition is recomputed in numpy: ``Quantile(q)`` is the smallest entry whose empirical CDF is at least q.
"""

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.quant import quantile_centres, quantile_quantize, quantile_round
from fedqssl.quant.kernels import native, use
from fedqssl.quant.quantile import KEY16_FROM

BACKENDS = ["torch", "native"] if native.available() else ["torch"]
needs_native = pytest.mark.skipif(not native.available(), reason=native.REASON)
SMALLEST_NORMAL = 2.0**-126
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _samples(name: str, n: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    x = {
        "normal": lambda: rng.standard_normal(n),
        "laplace": lambda: rng.laplace(size=n),
        "student": lambda: rng.standard_t(3, size=n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "negative": lambda: -np.exp(rng.standard_normal(n)),
        "wide": lambda: rng.standard_normal(n) * 10.0 ** rng.integers(-37, 37, n),
        "tiny": lambda: rng.standard_normal(n) * 1e-36,
        "relu": lambda: np.maximum(rng.standard_normal(n), 0),
        "denormal": lambda: rng.standard_normal(n) * 1e-40,
        "zeros": lambda: rng.choice([0.0, -0.0, 0.5, -2.0], n),
        "constant": lambda: np.full(n, -0.3),
    }[name]()
    return torch.from_numpy(x.astype(np.float32))


KINDS = ("normal", "laplace", "student", "cauchy", "negative", "wide", "tiny", "relu", "denormal", "zeros", "constant")


def _defined_centres(x: torch.Tensor, bits: int) -> np.ndarray:
    """Inverted CDF by sorting; ranks in exact integer arithmetic."""
    ordered = np.sort(x.numpy().ravel())
    last = 2**bits - 1
    ranks = [max(math.ceil(Fraction(i * ordered.size, last)), 1) for i in range(last + 1)]
    return ordered[np.array(ranks) - 1]


def _order_of_key(x: np.ndarray) -> np.ndarray:
    """Upper 16 bits of each float, numbered in ascending order of the floats; -0.0 counts as 0.0."""
    raw = (x.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.int64) >> 16
    return np.where(raw >= 0x8000, 0x8000 - raw, raw)


def _bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


@pytest.mark.parametrize("bits", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_centres_are_the_inverted_cdf(kind, bits):
    for n in (1, 2, 5, 1000, 1023, 1025):
        x = _samples(kind, n, seed=n)
        got = quantile_centres(x, bits, "exact").numpy()
        np.testing.assert_array_equal(got, _defined_centres(x, bits))
        assert got[0] == x.min() and got[-1] == x.max()
        assert np.isin(got, x.numpy()).all()


def test_numpy_has_the_same_definition():
    x = _samples("normal", 997)
    want = np.quantile(x.numpy(), np.arange(16) / 15, method="inverted_cdf")
    np.testing.assert_array_equal(quantile_centres(x, 4, "exact").numpy(), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_key16_centres_lie_in_the_key_of_the_exact_ones(kind, backend):
    """Interior centres within one key (denormals count as zero), end points exact, ascending."""
    for n, bits in ((1, 3), (300, 2), (5000, 6), (20_000, 10)):
        x = _samples(kind, n, seed=bits)
        want = _defined_centres(x, bits)
        with use(backend):
            got = quantile_centres(x, bits, "key16").numpy()
        assert got[0] == x.min() and got[-1] == x.max()
        assert (np.diff(got) >= 0).all()
        flushed = np.abs(want) < SMALLEST_NORMAL
        assert (np.abs(got[flushed]) <= SMALLEST_NORMAL).all()
        assert (np.abs(_order_of_key(got) - _order_of_key(want))[~flushed] <= 1).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(x=st.lists(finite, min_size=1, max_size=60), bits=st.integers(1, 7), copies=st.sampled_from([1, 3]))
def test_key16_on_any_floats(x, bits, copies):
    x = torch.tensor(x, dtype=torch.float32).repeat(copies)
    want = _defined_centres(x, bits)
    for backend in BACKENDS:
        with use(backend):
            got = quantile_centres(x, bits, "key16").numpy()
        normal = np.abs(want) >= SMALLEST_NORMAL
        assert (np.abs(_order_of_key(got) - _order_of_key(want))[normal] <= 1).all()
        assert (np.abs(got[~normal]) <= SMALLEST_NORMAL).all()
        assert got[0] == x.min() and got[-1] == x.max()


def _both(x: torch.Tensor, bits: int):
    for backend in ("torch", "native"):
        with use(backend):
            q = quantile_quantize(x, bits, "key16")
            yield q.codes.int(), _bits_of(q.codebook), _bits_of(quantile_round(x, bits, "key16")), q


def _assert_backends_equal(x: torch.Tensor, bits: int) -> None:
    (codes, book, rounded, q), (codes2, book2, rounded2, _) = _both(x, bits)
    assert torch.equal(codes, codes2)
    assert torch.equal(book, book2)
    assert torch.equal(rounded, rounded2)
    assert torch.equal(rounded, _bits_of(q.dequantize()))


@needs_native
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "zeros"])
def test_key16_backends_agree_bit_for_bit(kind):
    for bits in (1, 2, 4, 6, 8, 10, 12, 14, 16):
        _assert_backends_equal(_samples(kind, max(2 * KEY16_FROM, 2**bits + 5) + 3, seed=bits), bits)


@needs_native
@pytest.mark.parametrize("x", [[-0.0, 0.0, -1.0, -2.0], [0.0, -0.0], [0.0, -0.0, 1.0]])
def test_key16_backends_agree_on_signed_zeros(x):
    for bits in (2, 5):
        _assert_backends_equal(torch.tensor(x * 500), bits)


@needs_native
@settings(max_examples=40, deadline=None, derandomize=True)
@given(x=st.lists(finite, min_size=1, max_size=40), bits=st.integers(1, 5))
def test_key16_backends_agree_on_any_floats(x, bits):
    _assert_backends_equal(torch.tensor(x, dtype=torch.float32).repeat(33) + 0.0, bits)  # + 0.0: no -0.0 here


@needs_native
def test_thread_counts_agree():
    x = _samples("student", 100_003)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            with use("native"):
                q = quantile_quantize(x, 8, "key16")
                results.append((q.codes, q.codebook, quantile_round(x, 8, "key16")))
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("method", ["exact", "key16", "auto"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["normal", "cauchy", "negative", "wide", "relu", "denormal", "zeros"])
def test_largest_and_smallest_entries_survive(kind, backend, method):
    x = _samples(kind, 10_001).view(73, 137)
    for bits in (1, 3, 6, 10):
        with use(backend):
            q = quantile_quantize(x, bits, method)
            rounded = quantile_round(x, bits, method)
        assert q.shape == x.shape and torch.equal(q.dequantize(), rounded)
        for end in (x.argmin(), x.argmax()):
            assert rounded.flatten()[end] == x.flatten()[end]
        assert rounded.unique().numel() <= 2**bits


def test_exact_method_picks_the_nearest_centre():
    for kind in ("normal", "relu", "zeros"):
        x = _samples(kind, 3001)
        q = quantile_quantize(x, 5, "exact")
        best = (x.double().unsqueeze(1) - q.codebook.double()).abs().amin(1)
        assert torch.allclose((q.dequantize().double() - x.double()).abs(), best, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_key16_error_is_within_a_key_of_the_nearest_centre(backend):
    for kind in ("normal", "cauchy"):
        x = _samples(kind, 20_000)
        with use(backend):
            q = quantile_quantize(x, 6, "key16")
        best = (x.unsqueeze(1) - q.codebook).abs().amin(1)
        assert bool(((q.dequantize() - x).abs() <= best + x.abs() * 2**-7 + 1e-38).all())


def test_many_zeros_stay_zero_and_ties_are_legal():
    x = _samples("relu", 20_001)
    x[torch.rand(x.shape, generator=_generator()) < 0.6] = 0
    for method in ("exact", "key16"):
        q = quantile_quantize(x, 6, method)
        assert int((q.codebook == 0).sum()) > 40  # tied centres
        assert torch.equal(q.dequantize()[x == 0], torch.zeros(int((x == 0).sum())))
    constant = torch.full((9000,), 0.125)
    for method in ("exact", "key16"):
        assert torch.equal(quantile_round(constant, 4, method), constant)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["auto", "exact", "key16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_fewer_elements_than_centres_are_kept_exactly(method, rounding):
    for n, bits in ((0, 4), (1, 1), (2, 1), (15, 4), (16, 4), (9000, 14)):
        x = _samples("wide", n, seed=n)
        q = quantile_quantize(x, bits, method, rounding, _generator())
        assert torch.equal(q.dequantize(), x)
        assert q.codebook.numel() <= max(n, 1)
        assert torch.equal(quantile_round(x, bits, method, rounding, _generator()), x)


@lru_cache(maxsize=3)
def _million(kind: str, seed: int) -> torch.Tensor:
    return _samples(kind, 1_000_000, seed).sort().values


def _exact_mse(ordered: torch.Tensor, bits: int) -> float:
    """Nearest exact centre of sorted entries: between two midpoints all take the same centre."""
    centres = torch.from_numpy(_defined_centres(ordered, bits)).double()
    cuts = torch.searchsorted(ordered.double(), (centres[1:] + centres[:-1]) / 2, right=True)
    counts = torch.diff(cuts, prepend=torch.zeros(1, dtype=cuts.dtype), append=torch.tensor([ordered.numel()]))
    return float((torch.repeat_interleave(centres, counts) - ordered).square().mean())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["normal", "laplace", "student"])
@pytest.mark.parametrize("bits", [6, 8, 10, 14])
def test_mse_is_within_1_percent_of_the_exact_quantizer(kind, bits, seed):
    """At 14 bits a million entries leave 61 to a centre, and tail centres are only interpolated: 4% there (1.9% at most here)."""
    x = _million(kind, seed)
    mse = float((quantile_round(x, bits, "key16") - x).double().square().mean())
    ratio = mse / _exact_mse(x, bits)
    assert ratio <= (1.04 if bits == 14 else 1.01), ratio


def test_more_than_2_to_the_24_elements():
    """``torch.quantile`` refuses these."""
    n = 2**24 + 1
    x = torch.arange(n, dtype=torch.float32).sub_(n // 2)  # entries are their own ranks
    centres = quantile_centres(x, 4)
    ranks = torch.tensor([max(-(-i * n // 15), 1) for i in range(16)]) - 1
    want = ranks.float() - n // 2
    assert centres[0] == x[0] and centres[-1] == x[-1]
    assert bool(((centres - want).abs() <= want.abs() * 2**-7 + 1).all())
    rounded = quantile_round(x, 4)
    assert rounded[0] == x[0] and rounded[-1] == x[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["exact", "key16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("n", [3, 9000])
def test_not_finite_raises(n, bad, method, backend):
    x = _samples("normal", n)
    x[n // 2] = bad
    with use(backend):
        for function in (quantile_quantize, quantile_round, quantile_centres):
            with pytest.raises(ValueError, match="NaN or infinity"):
                function(x, 4, method)
        with pytest.raises(ValueError, match="NaN or infinity"):
            quantile_quantize(x, 4, method, "stochastic", _generator())


@pytest.mark.parametrize("method", ["exact", "key16"])
def test_stochastic_is_unbiased_and_picks_neighbours(method):
    """z-tests of 12 entries over 4,000 draws; a right quantizer fails with probability 1e-6 for a random seed."""
    draws, bits = 4000, 3
    base = _samples("student", 12, seed=4).sort().values
    x = base.repeat(draws)  # the same 12 entries, each many times: centres are among them
    q = quantile_quantize(x, bits, method, "stochastic", _generator(1))
    got = q.dequantize().view(draws, 12).double()
    centres = q.codebook.double()
    bound = NormalDist().inv_cdf(1 - 1e-6 / 24)
    moved = 0
    for j, value in enumerate(base.double()):
        low, high = centres[centres <= value].max(), centres[centres >= value].min()
        assert set(got[:, j].tolist()) <= {float(low), float(high)}
        if low < value < high:
            p = float((value - low) / (high - low))
            error = float(high - low) * math.sqrt(p * (1 - p) / draws)
            assert abs(float(got[:, j].mean() - value)) < bound * error
            moved += 1
        else:
            assert bool((got[:, j] == value).all())
    assert moved >= 3


def test_generator_is_required_and_decides():
    x = _samples("normal", 500)
    with pytest.raises(ValueError, match="pass generator="):
        quantile_quantize(x, 4, rounding="stochastic")
    first, again, other = (quantile_quantize(x, 4, "exact", "stochastic", _generator(s)).codes for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_bad_arguments_say_what_is_allowed():
    x = torch.rand(100)
    with pytest.raises(ValueError, match="'auto', 'exact' or 'key16', not 'fast'"):
        quantile_quantize(x, 2, "fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'nearest' or 'stochastic'"):
        quantile_round(x, 2, rounding="floor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole number from 1 to 16"):
        quantile_round(x, 0)
    with pytest.raises(ValueError, match="no quantiles"):
        quantile_centres(x[:0], 2)


def test_any_dtype_layout_and_the_input_is_not_changed():
    x = _samples("normal", 12_000).view(100, 120)
    before = x.clone()
    want = quantile_round(x, 5)
    assert torch.equal(quantile_round(x.t(), 5), want.t())
    assert torch.equal(quantile_round(x.double(), 5), want)
    assert torch.equal(x, before)
