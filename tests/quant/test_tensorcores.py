"""Sums of codes in TF32: what the bound says, on numbers rounded to TF32 as tensor cores round them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedqssl.quant.kernels import tensorcores


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Float32 rounded to 11 significant bits, to nearest."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def largest_terms(x_bits: int, w_bits: int) -> int:
    return 2**24 // ((2**x_bits - 1) * (2**w_bits - 1))


@pytest.mark.parametrize("x_bits, w_bits", [(1, 1), (4, 4), (5, 5), (6, 6), (7, 7), (8, 4), (11, 11)])
def test_sums_within_the_bound_are_exact_in_any_order(x_bits, w_bits):
    terms = min(largest_terms(x_bits, w_bits), 6000)
    assert tensorcores.exact(x_bits, w_bits, terms)
    draws = torch.Generator().manual_seed(x_bits)
    x = torch.randint(0, 2**x_bits, (terms,), generator=draws)
    w = 2 * torch.randint(0, 2**w_bits, (terms,), generator=draws) - (2**w_bits - 1)
    worst = torch.full_like(x, 2**x_bits - 1), torch.full_like(w, 2**w_bits - 1)
    for a, b in ((x, w), worst):
        assert torch.equal(to_tf32(a).long(), a) and torch.equal(to_tf32(b).long(), b)  # no operand is rounded
        products = to_tf32(a) * to_tf32(b)
        exact = (a * b).sum()
        for order in (torch.arange(terms), torch.randperm(terms, generator=draws), products.argsort()):
            total = torch.zeros((), dtype=torch.float32)
            for part in products[order].split(257):
                total = total + part.cumsum(0, dtype=torch.float32)[-1]
            assert int(total) == int(exact)


def test_the_bound_is_not_loose():
    assert not tensorcores.exact(12, 4, 1) and not tensorcores.exact(4, 12, 1)  # an operand needs 12 bits
    assert int(to_tf32(torch.tensor([4095.0]))) != 4095
    terms = largest_terms(7, 7)
    assert tensorcores.exact(7, 7, terms) and not tensorcores.exact(7, 7, terms + 1)
    assert float(torch.tensor(2**24 + 1, dtype=torch.float32)) != 2**24 + 1


def test_where_it_applies_in_the_networks_of_the_paper():
    """3 x 3 layers of ResNet-18 at width 64: all at 4 bits, up to 256 channels at 6."""
    channels = 64, 128, 256, 512
    assert [tensorcores.exact(4, 4, 9 * c) for c in channels] == [True] * 4
    assert [tensorcores.exact(6, 6, 9 * c) for c in channels] == [True, True, True, False]
    assert [tensorcores.exact(8, 8, 9 * c) for c in channels] == [False] * 4


def test_the_convolution_is_scale_times_the_sum():
    draws = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (2, 6, 5, 5), dtype=torch.uint8, generator=draws)
    w = (2 * torch.randint(0, 16, (4, 3, 3, 3), generator=draws) - 15).to(torch.int16)
    steps = (2, 1), (1, 0), (1, 1), 2
    got = tensorcores.conv2d(codes, w, 0.3, steps, (4, 4))
    want = F.conv2d(codes.double(), w.double(), None, *steps).float() * 0.3
    assert torch.equal(got, want)


def test_tf32_is_off_again_afterwards(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    seen = []

    def conv2d(*_):
        seen.append(torch.backends.cudnn.allow_tf32)
        return torch.ones(1)

    monkeypatch.setattr(F, "conv2d", conv2d)
    one = torch.ones(1, 1, 1, 1)
    for trusted in (True, False):
        monkeypatch.setattr(tensorcores, "trusted", lambda *_, answer=trusted: answer)
        tensorcores.conv2d(one.to(torch.uint8), one, 1.0, ((1, 1), (0, 0), (1, 1), 1), (1, 1))
        assert seen.pop() is trusted and torch.backends.cudnn.allow_tf32 is False


def winograd(x: torch.Tensor, w: torch.Tensor, bias: None, *steps: Any) -> torch.Tensor:
    """Stands for an algorithm that transforms its operands, as cuDNN may choose for some shapes: they lose bits in TF32."""
    half = to_tf32(x * 3.0).div(3.0), to_tf32(w * 1.3).div(1.3)
    return CONV(x, w, bias, *steps) if x.dtype == torch.float64 or len(x) < 4 else CONV(*half, bias, *steps)


CONV = F.conv2d


def test_a_shape_whose_algorithm_rounds_is_not_trusted(monkeypatch):
    """The probe of a GPU is of one shape; cuDNN may choose otherwise for another."""
    monkeypatch.setattr(F, "conv2d", winograd)
    tensorcores.trusted.cache_clear()
    steps = (1, 1), (1, 1), (1, 1), 1
    cpu, w = torch.device("cpu"), torch.Size((8, 4, 3, 3))
    try:
        for images, fine in ((2, True), (5, False)):
            assert tensorcores.trusted(cpu, torch.Size((images, 4, 5, 5)), w, steps, (6, 6)) is fine
    finally:
        tensorcores.trusted.cache_clear()


def test_no_gpu_no_tensor_cores():
    assert not tensorcores.available(torch.device("cpu"))
