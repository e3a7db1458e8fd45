"""Places in memory, computed by hand: what is needed at the same time lies apart, and everything else shares."""

import numpy as np
import pytest

from fedqssl.device.c_export import arena
from fedqssl.device.c_export.arena import ArenaError, Span, placed, plan
from fedqssl.device.c_export.operations import Convolution, Map, Network, Rescale

ONE = Rescale(np.ones(1, np.int64), np.ones(1, np.int64), 1)


def test_a_chain_needs_its_two_largest_neighbours():
    chain = [Span(16, 0, 1), Span(8, 1, 2), Span(4, 2, 3), Span(2, 3, 4)]
    starts, length = placed(chain)
    assert length == 24
    assert starts == [0, 16, 0, 4]  # 8 beside 16; 4 where 16 was; 2 beside 4


def test_a_gap_is_filled():
    starts, length = placed([Span(10, 0, 9), Span(6, 0, 1), Span(5, 0, 9), Span(6, 2, 9)])
    assert starts == [0, 10, 16, 10] and length == 21


def test_nothing_shares_that_meets():
    generator = np.random.default_rng(0)
    for _ in range(50):
        spans = []
        for _ in range(12):
            first = int(generator.integers(0, 10))
            spans.append(Span(int(generator.integers(1, 30)), first, first + int(generator.integers(0, 5))))
        starts, length = placed(spans)
        for i, a in enumerate(spans):
            assert 0 <= starts[i] <= length - a.size
            for j, b in enumerate(spans[:i]):
                apart = starts[i] + a.size <= starts[j] or starts[j] + b.size <= starts[i]
                assert apart or not a.meets(b)


def conv(source, target, residual=None, kernel=3):
    weights = np.zeros((target.channels, kernel, kernel, source.channels), np.uint8)
    return Convolution("c", source, target, weights, 4, (1, 1), (1, 1), ONE, 15, residual, 1)


def residual_block():
    """An image, x, conv to y, conv back to z with x added, scores."""
    image = Map(8, 8, 3, "image")
    x, y, z, scores = Map(8, 8, 4), Map(8, 8, 4), Map(8, 8, 4), Map(1, 1, 10, "wide")
    last = Convolution("l", z, scores, np.zeros((10, 8, 8, 4), np.uint8), 4, (1, 1), (0, 0), ONE, 0)
    return Network((conv(image, x), conv(x, y), conv(y, z, x), last), image, scores, 16, 4), (x, y, z)


def test_a_sum_takes_the_place_of_its_residual():
    network, (x, y, z) = residual_block()
    made = plan(network)
    assert made.places[z] == made.places[x] != made.places[y]
    assert made.codes == 2 * 256 and made.wide == 10
    apart = plan(network, reuse=False)
    assert apart.codes == 3 * 256 and len({apart.places[m] for m in (x, y, z)}) == 3


def test_a_residual_that_is_also_convolved_keeps_its_place():
    image, x, z, scores = Map(8, 8, 3, "image"), Map(8, 8, 4), Map(8, 8, 4), Map(1, 1, 10, "wide")
    last = Convolution("l", z, scores, np.zeros((10, 8, 8, 4), np.uint8), 4, (1, 1), (0, 0), ONE, 0)
    made = plan(Network((conv(image, x), conv(x, z, x), last), image, scores, 16, 4))
    assert made.places[x] != made.places[z]


def test_a_residual_that_is_read_later_keeps_its_place():
    image, scores = Map(8, 8, 3, "image"), Map(1, 1, 10, "wide")
    x, y, z, late = Map(8, 8, 4), Map(8, 8, 4), Map(8, 8, 4), Map(8, 8, 4)
    last = Convolution("l", late, scores, np.zeros((10, 8, 8, 4), np.uint8), 4, (1, 1), (0, 0), ONE, 0)
    operations = conv(image, x), conv(x, y), conv(y, z, x), conv(z, late, x), last
    made = plan(Network(operations, image, scores, 16, 4))
    assert made.places[z] != made.places[x] and made.codes == 3 * 256
    assert made.places[late] == made.places[x]


def test_scratch_and_sum_of_bytes():
    network, _ = residual_block()
    made = plan(network)
    convolutions = network.operations
    # Patches of 27, 36, 36 and 256 entries take 32, 48, 48 and 256; 64 pixels at a time, of the last layer its only one.
    assert [made.patches[o] for o in convolutions] == [64, 64, 64, 1]
    assert made.scratch == max(32 * 66, 48 * 66, 256 * 3)
    assert made.nbytes == 512 + 4 * 10 + 2 * made.scratch + arena.SUMS_BYTES


def test_less_memory_means_fewer_pixels_at_a_time():
    network, _ = residual_block()
    roomy = plan(network).nbytes
    tight = plan(network, max_ram=4000)
    assert tight.nbytes <= 4000 < roomy
    assert all(n == 1 or n % 2 == 0 for n in tight.patches.values())
    least = 512 + 40 + arena.SUMS_BYTES + 2 * 256 * 3
    assert plan(network, max_ram=least).nbytes == least
    with pytest.raises(ArenaError, match=f"needs {least:,} bytes of RAM, but --max-ram allows {least - 1:,}"):
        plan(network, max_ram=least - 1)
