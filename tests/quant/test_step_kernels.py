"""The weight update's kernels: compiled and plain torch give the formula's bytes, for all bits, sizes and threads."""

import numpy as np
import pytest
import torch

from fedqssl.quant import IDENTITY, SNAP, TANH, compand_codes, compand_pack, pack
from fedqssl.quant.kernels import native, reference, use

BACKENDS = [reference, *([native] if native.available() else [])]
SIZES = [1, 3, 7, 1023, 1025, 40_001]
"""Tails of a vector, of a byte and of a block, and more than one unit of work."""


def _random(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernels", BACKENDS, ids=lambda k: k.NAME)
@pytest.mark.parametrize(
    ("bits", "gradient_bits"), [(1, 3), (4, 6), (6, 8), (7, 9), (8, 10), (12, 14), (14, 16), (9, 8)]
)
def test_target_is_x_minus_rate_times_gradient(kernels, bits, gradient_bits):
    table = _random(2**bits, 1) - 0.5
    centres = (_random(2**gradient_bits, 2) - 0.5).float()
    for n in SIZES:
        codes = (_random(n, 3) * 2**bits).long()
        moves = (_random(n, 4) * 2**gradient_bits).long()
        got = kernels.step_target(
            pack(codes, bits), bits, n, table, pack(moves, gradient_bits), gradient_bits, centres, 0.3
        )
        want = table.numpy()[codes.numpy()] - 0.3 * centres.numpy().astype(np.float64)[moves.numpy()]
        assert got.dtype == torch.float64 and np.array_equal(got.numpy(), want)


def _codes_by_hand(y: np.ndarray, bits: int, scale: float, snap: float, uniform: np.ndarray | None) -> np.ndarray:
    top = 2**bits - 1
    t = np.clip(np.nan_to_num((y / scale + 1) * (top / 2), nan=0.0), 0, top)
    nearest = np.rint(t)
    if uniform is None:
        return nearest
    up = np.minimum(np.floor(t) + (uniform < t - np.floor(t)), top)
    return np.where(np.abs(t - nearest) <= snap, nearest, up)


@pytest.mark.parametrize("kernels", BACKENDS, ids=lambda k: k.NAME)
@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("stochastic", [False, True])
def test_codes_are_rounded_and_packed(kernels, bits, stochastic):
    for n in SIZES:
        y = (_random(n, 5) - 0.5) * 1.2  # some beyond the scale, on both sides
        y[: n // 3] = (2 * (y[: n // 3] * 2**bits).round() / (2**bits - 1) - 1) * 0.5  # some on a level up to noise
        y[0] = torch.nan
        y[n // 2] = torch.inf
        y[-1] = -torch.inf
        uniform = _random(n, 6) if stochastic else None
        got = kernels.round_pack(y, bits, 0.5, SNAP, uniform)
        want = _codes_by_hand(y.numpy(), bits, 0.5, SNAP, None if uniform is None else uniform.numpy())
        assert torch.equal(got, pack(torch.from_numpy(want).long(), bits)), n


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("domain", ["level", "value"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_packing_at_once_gives_the_same_bytes_and_draws(backend, domain, rounding, scale):
    if backend == "native" and not native.available():
        pytest.skip(native.REASON)
    x = (_random(3000, 7) - 0.5).view(30, 100).T  # not contiguous
    for compander in (TANH, IDENTITY):
        for bits in (2, 8, 11):
            one, two = torch.Generator().manual_seed(8), torch.Generator().manual_seed(8)
            with use(backend):
                got = compand_pack(x, bits, scale, compander, rounding, domain, one)
                want = pack(compand_codes(x, bits, scale, compander, rounding, domain, two), bits)
            assert torch.equal(got, want) and torch.equal(one.get_state(), two.get_state())


@pytest.mark.skipif(not native.available(), reason=native.REASON)
def test_threads_make_no_difference(monkeypatch):
    y, uniform = _random(200_001, 9) - 0.5, _random(200_001, 10)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(native, "_threads", lambda threads=threads: threads)
        found.append(native.round_pack(y, 5, 0.5, SNAP, uniform))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_stochastic_rounding_without_a_generator_says_what_to_pass():
    with pytest.raises(ValueError, match="generator="):
        compand_pack(torch.ones(3), 4, 1.0, rounding="stochastic")
