"""Rounding to a grid: nearest and stochastic, snapping, unbiasedness (Assumption 1).

Statistical tests compare z-scores of many independent means with a bound that a right implementation passes with
probability above 1 - 1e-6 for a random seed; seeds are fixed, so the outcome never changes.
"""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.quant import SNAP, round_to_grid

ERROR_RATE = 1e-6
DRAWS = 20_000


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _z_bound(tests: int) -> float:
    """Bonferroni: two-sided, ERROR_RATE over all tests."""
    return NormalDist().inv_cdf(1 - ERROR_RATE / (2 * tests))


def _draw(t: float, top: int, seed: int, **grid) -> torch.Tensor:
    values = grid.pop("values", None)
    values = None if values is None else torch.full((DRAWS,), values, dtype=torch.float64)
    column = torch.full((DRAWS,), t, dtype=torch.float64)
    return round_to_grid(column, top, "stochastic", _generator(seed), values=values, **grid)


def test_stochastic_is_unbiased_on_a_uniform_grid():
    positions = [0.01, 0.1, 0.5, 0.9, 0.99, 3.3, 6.7, 13.02, 14.999]
    for i, t in enumerate(positions):
        codes = _draw(t, 15, seed=i)
        assert set(codes.tolist()) <= {math.floor(t), math.ceil(t)}
        p = t - math.floor(t)
        z = (float(codes.mean()) - t) / math.sqrt(p * (1 - p) / DRAWS)
        assert abs(z) < _z_bound(len(positions)), (t, z)


def test_stochastic_is_unbiased_in_the_value_domain_of_a_non_uniform_codebook():
    """The level domain would be wrong by many standard errors here: shown, so that the test has power."""
    centres = torch.tensor([-4.0, -1.0, -0.2, 0.3, 2.5, 9.0], dtype=torch.float64)
    cases = [(k, part) for k in range(5) for part in (0.1, 0.5, 0.8)]
    level_z = 0.0
    for i, (k, part) in enumerate(cases):
        low, high = float(centres[k]), float(centres[k + 1])
        x = low + part * (high - low)
        position = k + part**2  # where a non-linear compander might put it: between k and k + 1, but not at k + part
        codes = _draw(position, 5, seed=100 + i, centres=centres, values=x)
        assert set(codes.tolist()) == {k, k + 1}
        error = (high - low) * math.sqrt(part * (1 - part) / DRAWS)
        z = (float(centres[codes.long()].mean()) - x) / error
        assert abs(z) < _z_bound(len(cases)), (k, part, z)
        by_level = centres[_draw(position, 5, seed=200 + i).long()].mean()
        level_z = max(level_z, abs(float(by_level) - x) / error)
    assert level_z > 20


def test_error_is_within_one_cell_and_nearest_within_half():
    t = torch.rand(10_000, generator=_generator(), dtype=torch.float64) * 255
    assert float((round_to_grid(t, 255) - t).abs().max()) <= 0.5
    assert float((round_to_grid(t, 255, "stochastic", _generator()) - t).abs().max()) < 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(t=st.floats(-2, 20), top=st.integers(1, 17))
def test_nearest_minimises_the_distance(t, top):
    got = round_to_grid(torch.tensor([t], dtype=torch.float64), top).item()
    clipped = min(max(t, 0.0), float(top))
    assert got == round(clipped)
    assert all(abs(clipped - got) <= abs(clipped - k) for k in range(top + 1))


def test_snap_keeps_what_is_on_a_level_up_to_noise():
    assert SNAP == 1e-4
    levels = torch.arange(256, dtype=torch.float64).repeat(200)
    noise = (torch.rand(levels.shape, generator=_generator(), dtype=torch.float64) * 2 - 1) * SNAP * 0.99
    centres = torch.linspace(-1, 1, 256, dtype=torch.float64) ** 3
    for grid in ({}, {"centres": centres, "values": centres.repeat(200)}):
        codes = round_to_grid(levels + noise, 255, "stochastic", _generator(1), **grid)  # type: ignore[arg-type]
        assert torch.equal(codes, levels)


def test_beyond_the_snap_codes_do_flip():
    t = torch.full((100_000,), 7 + 20 * SNAP, dtype=torch.float64)
    flips = int((round_to_grid(t, 15, "stochastic", _generator()) == 8).sum())
    assert 100 < flips < 320  # 200 expected, standard deviation 14


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_clipping_and_not_finite(rounding):
    t = torch.tensor([-5.0, 99.0, float("inf"), float("-inf"), float("nan"), 0.0, 7.0])
    assert round_to_grid(t, 7, rounding, _generator()).tolist() == [0, 7, 7, 0, 0, 0, 7]


def test_same_seed_same_codes_and_another_seed_others():
    t = torch.rand(1000) * 15
    first, again, other = (round_to_grid(t, 15, "stochastic", _generator(s)) for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_stochastic_does_not_touch_the_global_generator():
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    round_to_grid(torch.rand(9, generator=_generator()) * 3, 3, "stochastic", _generator())
    assert torch.equal(torch.rand(3), want)


def test_stochastic_needs_a_generator():
    with pytest.raises(ValueError, match="pass generator="):
        round_to_grid(torch.rand(3), 3, "stochastic")


def test_unknown_rounding_lists_the_choices():
    with pytest.raises(ValueError, match="'nearest' or 'stochastic', not 'up'"):
        round_to_grid(torch.rand(3), 3, "up")  # type: ignore[arg-type]
