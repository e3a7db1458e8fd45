"""Packed codes: size, documented bit order, both backends, every thread count, bad input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.quant import pack, packed_size, quantize_pack, unpack, unpack_dequantize
from fedqssl.quant.kernels import native, use
from fedqssl.studies.bench.timing import torch_threads

ALL_BITS = range(1, 17)
SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 65, 1001, 1023, 1025)
CHUNK = 1 << 15  # codes per unit of work of the compiled kernels
BACKENDS = ["torch", pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason=native.REASON))]
needs_native = pytest.mark.skipif(not native.available(), reason=native.REASON)


def _codes(n: int, bits: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2**bits, (n,), generator=torch.Generator().manual_seed(seed + 31 * n + bits))


def _big_int_bytes(codes: list[int], bits: int) -> bytes:
    """The documented order, another way: the stream is one little-endian integer, code i shifted by ``i * bits``."""
    stream = sum(code << i * bits for i, code in enumerate(codes))
    return stream.to_bytes((len(codes) * bits + 7) // 8, "little")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", ALL_BITS)
def test_bytes_are_the_documented_bit_stream(bits, backend):
    for n in SIZES:
        codes = _codes(n, bits)
        with use(backend):
            packed = pack(codes, bits)
            back = unpack(packed, bits, (n,))
        assert packed.dtype == torch.uint8 and packed.shape == (packed_size(n, bits),) == (-(-n * bits // 8),)
        assert bytes(packed.tolist()) == _big_int_bytes(codes.tolist(), bits)
        assert back.dtype == (torch.uint8 if bits <= 8 else torch.uint16)
        assert torch.equal(back.to(torch.int64), codes)


def test_bit_order_by_hand():
    assert pack(torch.tensor([1, 2, 7]), 3).tolist() == [0b11_010_001, 0b1]
    assert pack(torch.tensor([0xABC, 0x123]), 12).tolist() == [0xBC, 0x3A, 0x12]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), bits=st.integers(1, 16))
def test_round_trip_of_any_codes(data, bits):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))
    want = _big_int_bytes(codes, bits)
    for backend in ["torch", "native"] if native.available() else ["torch"]:
        with use(backend):
            packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
            assert bytes(packed.tolist()) == want
            assert unpack(packed, bits, (len(codes),)).tolist() == codes


@pytest.mark.parametrize("backend", BACKENDS)
def test_shape_dtype_and_stride_of_the_input_do_not_matter(backend):
    codes = _codes(60, 5).view(3, 4, 5)
    with use(backend):
        want = pack(codes.flatten(), 5)
        for same in (codes, codes.to(torch.int32), codes.to(torch.uint8), codes.to(torch.uint16), codes.double()):
            assert torch.equal(pack(same, 5), want)
        turned = codes.permute(2, 0, 1)
        assert torch.equal(pack(turned.to(torch.uint8), 5), pack(turned.contiguous(), 5))
        spread = torch.stack([want, want], 1)[:, 0]  # not contiguous
        assert torch.equal(unpack(spread, 5, (3, 4, 5)).to(torch.int64), codes)
        assert unpack(pack(codes[:0], 5), 5, (0, 4, 5)).shape == (0, 4, 5)


@needs_native
@pytest.mark.parametrize("bits", ALL_BITS)
def test_thread_counts_and_backends_agree_across_chunks(bits):
    n = 3 * CHUNK + 77
    x = torch.rand(n, generator=torch.Generator().manual_seed(bits)) * 1.2 - 0.1
    codes = _codes(n, bits)

    def everything():
        packed = pack(codes, bits)
        floats = quantize_pack(x, bits)
        back = unpack(packed, bits, (n,)).to(torch.int32)
        return packed, back, floats, unpack_dequantize(floats, bits, (n,), 0.7)

    with use("torch"):
        want = everything()
    for count in (1, 2, 3):
        with torch_threads(count), use("native"):
            assert all(torch.equal(a, b) for a, b in zip(everything(), want, strict=True))


@pytest.mark.parametrize(("bits", "backend"), [(3, "native"), (9, "native"), (4, "torch")])
def test_more_than_2_to_the_24_elements(bits, backend):
    if backend == "native" and not native.available():
        pytest.skip(native.REASON)
    n = 2**24 + 3
    codes = (torch.arange(n, dtype=torch.int32) % (2**bits - 1)).to(torch.uint8 if bits <= 8 else torch.uint16)
    with use(backend):
        packed = pack(codes, bits)
        assert packed.numel() == (n * bits + 7) // 8
        back = unpack(packed, bits, (n,))
    assert torch.equal(back.view(torch.int8), codes.view(torch.int8))
    start = 2**24 - 8  # code 2^24 - 8 begins on a byte boundary
    tail = codes[start:].to(torch.int32).tolist()
    assert bytes(packed[start * bits // 8 :].tolist()) == _big_int_bytes(tail, bits)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", ALL_BITS)
def test_quantize_pack_is_round_half_to_even_of_the_clipped_product(bits, backend):
    """Against Python's own ``round``; exact ties, NaN, infinities and values outside [0, 1] included."""
    top = 2**bits - 1
    ties = [(k + 0.5) / top for k in range(0, top, max(1, top // 40))]
    ends = [0.0, -0.0, 1.0, -0.3, 1.7, 1e30, -1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e-42]
    x = torch.tensor(ends + ties + torch.linspace(-0.1, 1.1, 101).tolist())
    products = (x * torch.tensor(float(top))).tolist()  # float32 product, as documented; then exact in Python
    want = [0 if p != p else round(min(max(p, 0.0), float(top))) for p in products]
    with use(backend):
        packed = quantize_pack(x, bits)
        assert unpack(packed, bits, x.shape).tolist() == want
        for scale in (1.0, 3.0, 0.1):
            got = unpack_dequantize(packed, bits, x.shape, scale)
            exact = torch.tensor(want, dtype=torch.float64) * scale / top
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), exact, rtol=2e-7, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exact_ties_go_to_even(backend):
    x = torch.tensor([0.5])  # the only tie that float32 holds exactly at every s: (2^s - 1) / 2
    with use(backend):
        for bits in ALL_BITS:
            low = (2**bits - 1) // 2
            assert unpack(quantize_pack(x, bits), bits, (1,)).item() == low + low % 2


@needs_native
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    x=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=40),
    bits=st.integers(1, 16),
    scale=st.floats(1e-3, 1e3),
)
def test_backends_agree_on_any_floats(x, bits, scale):
    x = torch.tensor(x, dtype=torch.float32)
    results = []
    for backend in ("torch", "native"):
        with use(backend):
            packed = quantize_pack(x, bits)
            results.append((packed, unpack_dequantize(packed, bits, x.shape, scale)))
    (a, u), (b, v) = results
    assert torch.equal(a, b) and torch.equal(u.view(torch.int32), v.view(torch.int32))


@pytest.mark.parametrize("codes", [[16], [-1], [0, 3, 255], [2**40]])
def test_codes_out_of_range_raise(codes):
    with pytest.raises(ValueError, match=r"4 bits must lie in 0\.\.15"):
        pack(torch.tensor(codes), 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_unsigned_codes_out_of_range_raise(backend, dtype):
    with use(backend), pytest.raises(ValueError, match=r"must lie in 0\.\.15"):
        pack(torch.tensor([3, 16], dtype=dtype), 4)


def test_fractional_codes_raise():
    with pytest.raises(ValueError, match=r"integer|whole"):
        pack(torch.tensor([1.5]), 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [unpack, unpack_dequantize])
def test_buffers_of_the_wrong_length_or_type_raise_with_the_right_length(function, backend):
    with use(backend):
        for size in (0, 4, 6):
            with pytest.raises(ValueError, match=f"13 codes of 3 bits take 5 uint8 bytes, not {size}"):
                function(torch.zeros(size, dtype=torch.uint8), 3, (13,))
        with pytest.raises(ValueError, match=r"not 5 of torch\.int32"):
            function(torch.zeros(5, dtype=torch.int32), 3, (13,))


@pytest.mark.parametrize("bits", [0, 17, -1, 32, True, 4.0, "4"])
def test_bits_outside_1_to_16_raise(bits):
    calls = [
        lambda: pack(torch.zeros(2, dtype=torch.uint8), bits),
        lambda: unpack(torch.zeros(2, dtype=torch.uint8), bits, (2,)),
        lambda: quantize_pack(torch.zeros(2), bits),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="whole number from 1 to 16"):
            call()
