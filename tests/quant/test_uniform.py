"""``quantize_s(r) = round((2^s - 1) r) / (2^s - 1)`` (Sec. 3), recomputed with exact fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.quant import QuantizedTensor, quantize_s, uniform_quantize

ALL_BITS = range(1, 17)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(r=st.floats(0, 1), bits=st.integers(1, 16))
def test_the_papers_formula_in_exact_arithmetic(r, bits):
    top = 2**bits - 1
    exact = Fraction(r) * top
    code = round(exact)  # half to even
    q = uniform_quantize(torch.tensor([r], dtype=torch.float64), bits)
    if abs(exact - code) < Fraction(1, 2) - Fraction(1, 10**9):  # a float product cannot tell closer ties apart
        assert q.codes.item() == code
        assert q.dequantize().item() == pytest.approx(code / top, abs=1e-15)
    assert abs(Fraction(q.dequantize().item()) - Fraction(r)) <= Fraction(1, 2 * top) + Fraction(1, 10**9)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_codebook_codes_and_size(bits):
    top = 2**bits - 1
    r = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(bits))
    q = uniform_quantize(r, bits)
    assert isinstance(q, QuantizedTensor) and q.shape == r.shape and q.bits == bits
    assert q.codes.dtype == (torch.uint8 if bits <= 8 else torch.uint16)
    assert q.codebook.tolist() == (torch.arange(top + 1, dtype=torch.float32) / top).tolist()
    assert torch.equal(q.dequantize(), quantize_s(r, bits))
    assert q.pack().numel() == (r.numel() * bits + 7) // 8
    back = QuantizedTensor.unpack(q.pack(), bits, q.shape, q.codebook)
    assert torch.equal(back.dequantize(), q.dequantize())


@pytest.mark.parametrize("bits", ALL_BITS)
def test_idempotent_with_nearest_and_with_stochastic_rounding(bits):
    k = torch.arange(2**bits)
    values = k.float() / (2**bits - 1)
    for rounding in ("nearest", "stochastic"):
        codes = uniform_quantize(values, bits, rounding, torch.Generator().manual_seed(0)).codes
        assert torch.equal(codes.to(torch.int64), k)


def test_values_outside_are_clipped_and_nan_is_code_zero():
    r = torch.tensor([-3.0, 1.5, float("inf"), float("-inf"), float("nan")])
    assert uniform_quantize(r, 3).codes.tolist() == [0, 7, 7, 0, 0]
    generator = torch.Generator().manual_seed(0)
    assert uniform_quantize(r, 3, "stochastic", generator).codes.tolist() == [0, 7, 7, 0, 0]


def test_ties_go_to_even():
    assert uniform_quantize(torch.tensor([0.5]), 1).codes.item() == 0  # 0.5 -> 0
    assert uniform_quantize(torch.tensor([0.5]), 2).codes.item() == 2  # 1.5 -> 2
    assert uniform_quantize(torch.tensor([0.5]), 3).codes.item() == 4  # 3.5 -> 4


@pytest.mark.parametrize("shape", [(0,), (1,), (), (2, 0, 3)])
def test_empty_and_scalar(shape):
    q = uniform_quantize(torch.full(shape, 0.4), 4)
    assert q.shape == shape and q.dequantize().shape == shape


def test_the_result_carries_no_graph():
    r = torch.rand(4, requires_grad=True)
    assert not quantize_s(r, 4).requires_grad


@pytest.mark.parametrize("bits", [0, 17, 2.5, None, True])
def test_bad_bits_raise(bits):
    with pytest.raises(ValueError, match="whole number from 1 to 16"):
        quantize_s(torch.rand(3), bits)


def test_a_codebook_that_is_too_long_raises():
    with pytest.raises(ValueError, match="at most 4 entries"):
        QuantizedTensor(torch.zeros(3, dtype=torch.uint8), torch.zeros(5), 2)
