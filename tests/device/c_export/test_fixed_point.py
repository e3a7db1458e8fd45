"""Fixed point against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from fedqssl.device.c_export.fixed_point import fraction_bits, rescale
from fedqssl.device.c_export.writer import packed_rows, string


@pytest.mark.parametrize("keep", [0, 5])
def test_rounded_to_nearest_except_at_boundaries(keep):
    generator = np.random.default_rng(1)
    factor, summand = generator.normal(size=64) * 1e-3, generator.normal(size=64) * 5
    most = np.full(64, 1e6)
    found = rescale(factor, summand, most, keep=keep)
    assert np.abs(found.multiplier).max() >= 2**30 and np.abs(found.multiplier).max() < 2**31
    for x in (-999_999, -1, 0, 1, 12_345, 1_000_000):
        got = (x * found.multiplier + found.offset) >> found.shift
        for a, b, k in zip(factor, summand, got, strict=True):
            exact = (Fraction(a) * x + Fraction(b)) * 2**keep
            assert abs(exact - int(k)) <= Fraction(1, 2) + Fraction(1, 10**4)


def test_sums_fit_64_bits():
    found = rescale([1.0, -0.5], [1e9, 0.0], 2.0**31, extra=1e9)
    assert 2**31 * int(np.abs(found.multiplier).max()) + int(np.abs(found.offset).max()) < 2**62


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        rescale([bad], [0.0], 1.0)


def test_numbers_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="too large"):
        rescale([1e30], [0.0], 1.0)


def test_fraction_bits_leave_room_in_32_bits():
    assert fraction_bits(3.9) == 16 and fraction_bits(2.0**20 - 1) == 10
    for largest in (0.0, 1.0, 16383.9, 16384.0, 1e6):
        assert largest * 2.0 ** fraction_bits(largest) < 2**30


@pytest.mark.parametrize("bits", range(1, 9))
def test_planes_hold_every_weight(bits):
    """Read as the C does: planes of 8, 4, 2, 1 bits; byte j of n holds weights j, j + n, ..., the lowest first."""
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 27)).astype(np.uint8)
    rows = packed_rows(codes, bits)
    assert rows.shape == (3, 32 * bits // 8)
    for row, want in zip(rows, codes, strict=True):
        got, start, low = np.zeros(32, int), 0, 0
        for width in (8, 4, 2, 1):
            if bits & width:
                n = 32 * width // 8
                for weight in range(32):
                    byte, place = row[start + weight % n], weight // n * width
                    got[weight] += ((int(byte) >> place) & (2**width - 1)) << low
                start, low = start + n, low + width
        assert got[:27].tolist() == want.tolist() and not got[27:].any()


def test_any_text_is_a_string_of_c():
    assert string('a"b\\c\n??/é*/') == '"a\\042b\\134c\\012\\077\\077/\\303\\251*/"'
