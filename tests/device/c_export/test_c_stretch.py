"""Stretched contrast in C: the bytes of the simulation, and those of torch but for what float32 rounds otherwise."""

import ctypes
import subprocess

import numpy as np
import pytest
import torch

from c_models import WARNINGS, needed, pixels
from fedqssl.device.c_export.lower import CExportError, Lowering
from fedqssl.device.c_export.operations import Map
from fedqssl.device.c_export.simulate import carry_out
from fedqssl.device.c_export.values import Codes, View
from fedqssl.device.c_export.writer import template
from fedqssl.models.contrast import stretched

HEAD = """#include "stdint.h"
static int32_t sums[2][64];
static uint8_t to_code(int64_t level, int32_t shift, int32_t top)
{
    return (uint8_t)(level < 0 ? 0 : level >> shift < top ? level >> shift : top);
}
"""
TAIL = """
void shown(const uint8_t *image, int32_t count, int32_t spread, int32_t least, uint8_t *output);
void shown(const uint8_t *image, int32_t count, int32_t spread, int32_t least, uint8_t *output)
{
    stretch(image, count, spread, least, output);
}
"""


def operation(side: int, channels: int):
    lowering = Lowering()
    lowering.stretched("image_contrast", View(Codes(Map(side, side, channels, "image"), 1 / 255, 255)))
    return lowering.operations[0]


def simulated(images: np.ndarray) -> np.ndarray:
    """Images (N, H, W, C) as the exported model sees them."""
    stretch = operation(*images.shape[2:])
    found = {stretch.source: images.astype(np.int64)}
    carry_out(stretch, found)
    return found[stretch.target]


@pytest.fixture(scope="module")
def in_c(tmp_path_factory):
    """The template by itself; whatever is undefined in C ends the program."""
    folder = tmp_path_factory.mktemp("stretch")
    (folder / "s.c").write_text(HEAD + template("stretch.c") + TAIL)
    checks = "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"
    words = [needed("gcc", "gcc"), "-O1", *WARNINGS, *checks, "-shared", "-fPIC", "-o", "s.so", "s.c"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "s.so"))

    def run(image: np.ndarray) -> np.ndarray:
        output, stretch = np.empty_like(image), operation(*image.shape[1:])
        library.shown(
            ctypes.c_void_p(image.ctypes.data),
            image.size,
            stretch.spread,
            stretch.least,
            ctypes.c_void_p(output.ctypes.data),
        )
        return output

    return run


def photos(channels: int, count: int = 20, side: int = 24) -> torch.Tensor:
    """Images of every light: dark, flat, bright, saturated, full; as many of each."""
    draws = torch.Generator().manual_seed(channels)
    noise = torch.randn(5 * count, channels, side, side, generator=draws)
    middle = torch.tensor([12.0, 128.0, 240.0, 150.0, 127.0]).repeat(count)
    spread = torch.tensor([6.0, 1.5, 6.0, 300.0, 40.0]).repeat(count)
    images = noise * spread[:, None, None, None] + middle[:, None, None, None]
    return images.round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_bytes_of_torch(channels):
    """Codes differ only within 1e-3 of a rounding boundary, and hardly ever."""
    images = photos(channels)
    ours, torchs = simulated(pixels(images)), pixels(stretched(images)).astype(np.int64)
    x = pixels(images).astype(np.float64)
    mean, std = (f(x, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    assert (std < 4).sum() == 20 and 0 in ours and 255 in ours
    exact = 127.5 + 51 * (x - mean) / np.maximum(std, 4)
    assert np.abs(ours - np.clip(exact, 0, 255)).max() <= 0.5 + 1e-9
    wrong = ours != torchs
    assert wrong.mean() <= 1e-3 and np.abs(ours - torchs).max() <= 1
    assert np.abs(exact - np.floor(exact) - 0.5)[wrong].max(initial=0) <= 1e-3


@pytest.mark.parametrize("channels", [1, 3])
def test_the_bytes_of_the_simulation(channels, in_c):
    images = pixels(photos(channels))
    for image, want in zip(images, simulated(images), strict=True):
        assert np.array_equal(in_c(image), want)


def test_half_way_between_two_codes(in_c):
    """Two values that are equally frequent lie exactly one standard deviation from the mean: at 76.5 and 178.5."""
    for low, high in ((0, 255), (96, 104), (7, 30)):
        image = np.where(np.indices((8, 8)).sum(0) % 2, low, high).astype(np.uint8)[..., None]
        assert sorted(set(in_c(image).ravel())) == sorted(set(simulated(image[None]).ravel())) == [76, 178]
    assert set(in_c(np.full((8, 8, 1), 200, np.uint8)).ravel()) == {128}


def test_the_largest_images(in_c):
    """Nothing overflows: half black and half white, nearly black, white, and a single pixel."""
    image = np.zeros((512, 512, 3), dtype=np.uint8)
    image[256:] = 255
    assert np.array_equal(in_c(image), simulated(image[None])[0])
    image[1:], image[0] = 0, 255
    assert np.array_equal(in_c(image), simulated(image[None])[0])
    image[...], image[3, 3] = 255, 0
    assert np.array_equal(in_c(image), simulated(image[None])[0])
    assert in_c(np.array([[[9]]], dtype=np.uint8)).item() == 128
    with pytest.raises(CExportError, match="at most 1,048,576 values"):
        operation(1024, 3)


def test_it_reads_nothing_but_pixels():
    codes = Codes(Map(8, 8, 3), 1 / 15, 15)
    for source in (codes, View(codes), View(Codes(Map(8, 8, 3, "image"), 1 / 255, 255), (2, 2), (2, 2))):
        with pytest.raises(CExportError, match=r"image_contrast \(Stretch\) does not read an image"):
            Lowering().stretched("image_contrast", source)
