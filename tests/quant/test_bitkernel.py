"""The paper's bit kernel (Sec. 1.1) against integer arithmetic, both backends."""

import numpy as np
import pytest
import torch

from fedqssl.quant import bit_conv2d, bit_dot
from fedqssl.quant.bitkernel import bit_planes
from fedqssl.quant.kernels import native, use

BACKENDS = ["torch", pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason=native.REASON))]
PAIRS = [(m, k) for m in range(1, 5) for k in range(1, 5)] + [(8, 8), (8, 1), (1, 8), (5, 7)]


def _codes(rng: np.random.Generator, bits: int, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**bits, shape, dtype=np.int64)


def _tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.uint8))


def _integer_conv(x, w, stride, padding, dilation) -> np.ndarray:
    """Convolution by its definition, in int64."""
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    size = [(x.shape[2 + d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    out = np.zeros((x.shape[0], w.shape[0], *size), dtype=np.int64)
    for a in range(w.shape[2]):
        for b in range(w.shape[3]):
            h, v = a * dilation[0], b * dilation[1]
            part = x[:, :, h : h + stride[0] * size[0] : stride[0], v : v + stride[1] * size[1] : stride[1]]
            part = part[:, :, : size[0], : size[1]]
            out += np.einsum("nchw,oc->nohw", part, w[:, :, a, b])
    return out


def _check(shape, kernel, bits, stride=(1, 1), padding=(0, 0), dilation=(1, 1), scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    m, k = bits
    x, w = _codes(rng, m, *shape), _codes(rng, k, *kernel)
    x[:1, 0, 0, 0], w[0, 0, 0, 0] = 2**m - 1, 2**k - 1
    want = _integer_conv(x, 2 * w - (2**k - 1), stride, padding, dilation)
    assert np.abs(want).max(initial=0) < 2**24
    got = bit_conv2d(_tensor(x), _tensor(w), m, k, stride, padding, dilation, scale)
    assert got.dtype == torch.float32 and got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), (want * scale).astype(np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("m", "k"), PAIRS)
def test_dot_is_the_integer_dot_product(m, k, backend):
    rng = np.random.default_rng(m * 10 + k)
    with use(backend):
        for n in (0, 1, 7, 8, 9, 63, 64, 65, 1000):
            x, y = _codes(rng, m, n), _codes(rng, k, n)
            assert bit_dot(_tensor(x), _tensor(y), m, k) == int(x @ y)
        x, y = np.full(777, 2**m - 1), np.full(777, 2**k - 1)
        assert bit_dot(_tensor(x), _tensor(y), m, k) == int(x @ y)


def test_planes_are_the_binary_digits():
    codes = torch.tensor([[5, 2], [7, 0]], dtype=torch.uint8)
    assert bit_planes(codes, 3).tolist() == [[[1, 0], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [1, 0]]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", PAIRS)
def test_convolution_is_the_integer_one(bits, backend):
    with use(backend):
        _check((2, 5, 6, 7), (3, 5, 3, 3), bits, padding=(1, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 2, 3, 7, 8, 9, 16, 17, 24, 33, 64, 65])
def test_channels_of_any_number(channels, backend):
    with use(backend):
        _check((1, channels, 5, 4), (2, channels, 3, 3), (2, 2), padding=(1, 1), seed=channels)
        _check((1, channels, 3, 3), (3, channels, 1, 1), (2, 1), seed=channels)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1)),
        ((3, 3), (1, 2), (0, 2), (1, 1)),
        ((3, 3), (1, 1), (2, 2), (2, 2)),
        ((3, 2), (2, 1), (1, 3), (1, 2)),
        ((1, 1), (2, 2), (0, 0), (1, 1)),
        ((1, 5), (3, 1), (0, 2), (1, 1)),
        ((5, 1), (1, 1), (4, 0), (2, 1)),
        ((8, 9), (1, 1), (0, 0), (1, 1)),
        ((3, 3), (1, 1), (5, 5), (1, 1)),
    ],
)
def test_strides_padding_and_dilation(kernel, stride, padding, dilation, backend):
    with use(backend):
        for channels in (3, 10):
            _check((2, channels, 8, 9), (4, channels, *kernel), (3, 2), stride, padding, dilation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_and_batch(backend):
    with use(backend):
        _check((5, 3, 4, 4), (2, 3, 3, 3), (2, 2), scale=0.25)
        _check((0, 3, 4, 4), (2, 3, 3, 3), (2, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_channels_last_input_gives_the_same(backend):
    rng = np.random.default_rng(0)
    x, w = _tensor(_codes(rng, 2, 2, 6, 5, 5)), _tensor(_codes(rng, 2, 3, 6, 3, 3))
    with use(backend):
        want = bit_conv2d(x, w, 2, 2)
        assert torch.equal(bit_conv2d(x.contiguous(memory_format=torch.channels_last), w, 2, 2), want)
        assert want.is_contiguous(memory_format=torch.channels_last)


def test_thread_counts_agree():
    rng = np.random.default_rng(0)
    x, w = _tensor(_codes(rng, 2, 7, 6, 5, 5)), _tensor(_codes(rng, 2, 3, 6, 3, 3))
    want = bit_conv2d(x, w, 2, 2)
    torch.set_num_threads(3)
    try:
        assert torch.equal(bit_conv2d(x, w, 2, 2), want)
    finally:
        torch.set_num_threads(1)


def test_bad_arguments_raise():
    x = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"uint8 codes of 1\.\.8 bits, not torch\.int64"):
        bit_dot(x.long(), x, 2, 2)
    for bits in (0, 9):
        with pytest.raises(ValueError, match=f"of {bits} bits"):
            bit_dot(x, x, 2, bits)
    with pytest.raises(ValueError, match="different length"):
        bit_dot(x, x[:3], 2, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_that_do_not_fit_raise(backend):
    """The compiled kernel must not read past the weights."""
    x = torch.zeros(1, 9, 3, 3, dtype=torch.uint8)
    with use(backend):
        with pytest.raises(ValueError, match="channels"):
            bit_conv2d(x, torch.zeros(2, 5, 2, 2, dtype=torch.uint8), 1, 1)
        with pytest.raises(ValueError, match="larger than"):
            bit_conv2d(x, torch.zeros(2, 9, 5, 5, dtype=torch.uint8), 1, 1)
