"""Controls: each by hand, and the plain sentence that goes with them."""

import math

import pytest
import torch

from fedqssl.data.digits import digits
from fedqssl.evaluation.controls import (
    SHORT,
    WORDS,
    Controls,
    Measured,
    best_control,
    hog,
    knn_warning,
    measure_controls,
    raw_pixels,
    verdict,
)


def stripes(angle: float, n: int = 1, size: int = 32) -> torch.Tensor:
    """Waves that travel in this direction, in degrees."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    a = math.radians(angle)
    wave = torch.sin((x * math.cos(a) + y * math.sin(a)) * 0.6)
    return (127.5 * (1 + 0.8 * wave)).to(torch.uint8).expand(n, 1, size, size)


@pytest.mark.parametrize("angle, bins", [(0, {0, 8}), (50, {2}), (90, {4}), (130, {6}), (180, {0, 8}), (230, {2})])
def test_gradients_vote_for_their_direction(angle, bins):
    cells = hog(stripes(angle)).view(9, 8, 8)
    assert int(cells[:, 2:6, 2:6].mean((1, 2)).argmax()) in bins


@pytest.mark.parametrize("size", [16, 28, 32, 96])
@pytest.mark.parametrize("channels", [1, 3])
def test_hog_has_as_many_numbers_at_every_size(size, channels):
    images = torch.randint(0, 256, (4, channels, size, size), dtype=torch.uint8)
    found = hog(images)
    assert found.shape == (4, 8 * 8 * 9) and found.isfinite().all() and found.min() >= 0
    assert torch.equal(hog(images.new_full((1, channels, size, size), 77)), torch.zeros(1, 576))


def test_one_block_by_hand():
    """Two cells a side make one block: normalise, cut off at 0.2, normalise."""
    images = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = (images[0, 0].double() / 255).sqrt()
    votes = torch.zeros(9, 2, 2, dtype=torch.float64)
    for i in range(8):
        for j in range(8):
            dx = float(x[i, j + 1] - x[i, j - 1]) if 0 < j < 7 else 0.0
            dy = float(x[i + 1, j] - x[i - 1, j]) if 0 < i < 7 else 0.0
            place = (math.degrees(math.atan2(dy, dx)) % 180) / 20 - 0.5
            low = math.floor(place)
            votes[low % 9, i // 4, j // 4] += math.hypot(dx, dy) * (1 - place + low)
            votes[(low + 1) % 9, i // 4, j // 4] += math.hypot(dx, dy) * (place - low)
    block = (votes / votes.norm()).clamp(max=0.2)
    assert torch.allclose(hog(images, cells=2).double(), (block / block.norm()).flatten()[None], atol=1e-5)


def test_the_strongest_channel_votes():
    grey = stripes(50)
    coloured = torch.cat([torch.full_like(grey, 100), grey, torch.full_like(grey, 30)], 1)
    assert torch.allclose(hog(coloured), hog(grey))


def test_brightness_does_not_matter_to_hog():
    images = stripes(30, 1).float()
    assert torch.allclose(hog(images.to(torch.uint8)), hog((images * 0.6).to(torch.uint8)), atol=0.05)


def test_raw_pixels_are_averages():
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = raw_pixels(images).view(2, 3, 16, 16)
    assert torch.allclose(found[0, 1, 3, 5], images[0, 1, 6:8, 10:12].float().mean() / 255)
    assert raw_pixels(images[:, :1, :8, :8]).shape == (2, 64)


def test_controls_of_real_digits():
    train, test = digits("train"), digits("test")
    assert train.labels is not None and test.labels is not None
    kept = torch.arange(0, len(train), 3)
    found = measure_controls(train.images[kept], train.labels[kept], test.images, test.labels, 10)
    assert found.chance == 0.1
    commonest = int(train.labels[kept].bincount().argmax())
    assert found.commonest == pytest.approx(test.labels.eq(commonest).double().mean().item())
    assert found.pixels > 0.85 and found.hog > 0.85
    assert found.to_json() == {"chance": 0.1, "commonest": found.commonest, "pixels": found.pixels, "hog": found.hog}


def test_directions_are_what_hog_sees_and_pixels_do_not():
    """Stripes of random phase: their mean picture is grey for both classes."""
    draws = torch.Generator().manual_seed(0)
    shifts = torch.randint(0, 32, (160, 2), generator=draws).tolist()
    wide = [stripes(0, size=64)[0], stripes(90, size=64)[0]]
    images = torch.stack([wide[i % 2][:, a : a + 32, b : b + 32] for i, (a, b) in enumerate(shifts)])
    labels = torch.arange(160) % 2
    found = measure_controls(images[:80], labels[:80], images[80:], labels[80:], 2)
    assert found.hog > 0.95 > 0.8 > found.pixels


def test_a_sentence_says_whether_it_was_worth_it():
    controls = Controls(0.1, 0.12, 0.485, 0.81).to_json()
    assert best_control(controls) == ("hog", 0.81)
    good, tie = Measured("global accuracy", 0.9, controls), Measured("mean local accuracy", 0.81, controls)
    hog = "logistic regression on HOG features (81.0%)"
    assert verdict([good], 10, -0.5) == f"The global accuracy of 90.0% beats the best control, {hog}."
    both = f"The global accuracy of 90.0% beats the best control, {hog}; the mean local accuracy of 81.0% does not beat {hog}."
    assert verdict([good, tie]).startswith(both)
    for words, found in (
        ("commonest class", {"chance": 0.1, "commonest": 0.9}),
        ("guessing", {"chance": 0.6, "untrained": 0.4}),
        ("the untrained network (60.0%)", {"untrained": 0.6, "pixels": 0.5}),
    ):
        assert words in verdict([Measured("global accuracy", 0.5, found)])
    assert WORDS.keys() == SHORT.keys() == {*controls, "untrained"}


@pytest.mark.parametrize(
    ("steps", "gain", "advice"),
    [
        (92, -0.1, "Train longer first: its model is made of only 92 steps"),
        (900, -0.1, "views.preset) and a smaller ssl.temperature"),
        (900, 0.1, "a larger width, or features=pyramid if it had others"),
        (None, None, "a larger width, or features=pyramid if it had others"),
    ],
)
def test_advice_depends_on_what_happened(steps, gain, advice):
    found = verdict([Measured("global accuracy", 0.3, {"chance": 0.5})], steps, gain)
    assert advice in found and found.count(". ") == 1


def test_knn_below_the_untrained_networks_is_a_warning():
    words = knn_warning(0.225, 0.295)
    assert words is not None and "22.5%" in words and "29.5%" in words and "views.preset" in words
    assert knn_warning(0.294, 0.295) is knn_warning(0.4, 0.295) is None
    assert knn_warning(None, 0.3) is knn_warning(0.2, None) is knn_warning(math.nan, 0.3) is None


def test_wrong_input_says_so():
    images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="train images must be uint8"):
        measure_controls(images.float(), labels, images, labels, 2)
    with pytest.raises(ValueError, match="test images must be uint8"):
        measure_controls(images, labels, images, labels[:2], 2)
