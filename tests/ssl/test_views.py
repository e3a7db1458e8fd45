import colorsys
import math

import pytest
import torch
import torch.nn.functional as F

from fedqssl.ssl import ViewConfig, augment, two_views, views

IDENTITY = ViewConfig(scale=(1, 1), ratio=(1, 1), flip_p=0, jitter_p=0, grayscale_p=0)
LUMA = torch.tensor(views.LUMA)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(n: int = 6, c: int = 3, h: int = 32, w: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8, generator=generator(seed))


def only(**changes) -> ViewConfig:
    """A config that changes nothing but what is named."""
    base = {"scale": (1, 1), "ratio": (1, 1), "flip_p": 0, "grayscale_p": 0}
    base |= {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0, "jitter_p": 1}
    return ViewConfig(**(base | changes))


@pytest.mark.parametrize("c", [3, 1])
@pytest.mark.parametrize("n, h, w", [(0, 8, 8), (1, 32, 32), (200, 32, 32), (3, 20, 13), (2, 1, 1)])
def test_shape_range_and_layout(n, c, h, w):
    out = two_views(random_images(n, c, h, w), generator())
    assert out.shape == (2 * n, c, h, w) and out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert ((out >= 0) & (out <= 1)).all()


def test_same_state_same_bytes_and_the_state_moves_on():
    images = random_images(100)
    g = generator(3)
    first, second = two_views(images, g), two_views(images, g)
    assert torch.equal(first, two_views(images, generator(3)))
    assert not torch.equal(first, second)


def test_blocks_do_not_change_the_result(monkeypatch):
    images = random_images(50)
    whole = two_views(images, generator())
    monkeypatch.setattr(views, "_BLOCK_BYTES", 7 * 4 * 3 * 32 * 32)
    assert torch.allclose(two_views(images, generator()), whole, atol=1e-6)


def test_every_image_and_view_gets_its_own_parameters():
    images = random_images(1).expand(40, -1, -1, -1)
    out = two_views(images, generator()).flatten(1)
    distance = torch.cdist(out, out) + torch.eye(80)
    assert (distance > 1e-3).all()


@pytest.mark.parametrize("c", [3, 1])
def test_identity_config_leaves_images_unchanged(c):
    images = random_images(5, c)
    expected = images.float() / 255
    out = two_views(images, generator(), IDENTITY)
    assert torch.allclose(out, expected.repeat(2, 1, 1, 1), atol=1e-6)


def test_uint8_and_float_images_give_the_same_views():
    images = random_images(9)
    assert torch.allclose(augment(images, generator()), augment(images.float() / 255, generator()), rtol=0, atol=2e-6)


def test_flip_is_a_mirror():
    images = random_images(4)
    out = augment(images, generator(), only(flip_p=1))
    assert torch.allclose(out, images.flip(3) / 255, atol=1e-6)


@pytest.mark.parametrize("box", [(0, 0, 32, 24), (5, 3, 17, 20), (31, 23, 1, 1), (2, 0, 9, 24)])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_is_interpolate_of_the_cut_out(box, flip):
    top, left, rows, columns = box
    image = torch.rand(1, 3, 32, 24, generator=generator())
    at = [torch.tensor([float(v)]) for v in (top, rows, left, columns)]
    p_y = views.crop_positions(at[0], at[1], 32)
    p_x = views.crop_positions(at[2], at[3], 24, torch.tensor([flip]))
    cut = image[:, :, top : top + rows, left : left + columns]
    expected = F.interpolate(cut, size=(32, 24), mode="bilinear", align_corners=False)
    out = views.resample(image, p_y, p_x)
    assert torch.allclose(out, expected.flip(3) if flip else expected, atol=1e-5)


def test_random_crops_are_some_cut_out_of_the_right_area():
    """Recover each crop from two ramps: the extreme coordinates that a view shows are its box."""
    config = only(scale=(0.3, 0.6))
    x, y = torch.linspace(0, 1, 32).expand(32, 32), torch.linspace(0, 1, 32).expand(32, 32).T
    image = torch.stack([x, y, x])[None].expand(300, -1, -1, -1)
    out = augment(image, generator(), config)[:, :2].flatten(2) * 31
    size = out.amax(2) - out.amin(2) + 1  # (N, 2) columns and rows
    area = size.prod(1) / 32**2
    assert torch.allclose(size, size.round(), atol=1e-3)
    assert area.min() > 0.25 and area.max() < 0.65 and area.std() > 0.05
    assert (out.amin((0, 2)) < 0.5).all() and (out.amax((0, 2)) > 30.5).all()  # every edge is within reach


def test_resample_is_grid_sample():
    g = generator()
    image = torch.rand(5, 3, 12, 9, generator=g)
    p_y, p_x = 11 * torch.rand(5, 12, generator=g), 8 * torch.rand(5, 9, generator=g)
    x, y = torch.broadcast_tensors((2 * p_x + 1)[:, None, :] / 9 - 1, (2 * p_y + 1)[:, :, None] / 12 - 1)
    expected = F.grid_sample(image, torch.stack([x, y], -1), padding_mode="border", align_corners=False)
    assert torch.allclose(views.resample(image, p_y, p_x), expected, atol=1e-5)


def test_crop_statistics_of_the_defaults():
    n, g = 20000, generator()
    p_y, p_x = views._crops(torch.rand(5, n, generator=g), 32, 32, ViewConfig())
    rows, columns = (p.amax(1) - p.amin(1) + 1 for p in (p_y, p_x))
    assert (rows * columns / 1024).mean() == pytest.approx(0.6, abs=0.03)
    assert (columns / rows).log().mean() == pytest.approx(0, abs=0.02)
    assert (p_x[:, 0] > p_x[:, -1]).float().mean() == pytest.approx(0.5, abs=0.02)


def test_brightness_scales():
    images = torch.full((50, 3, 4, 4), 0.5)
    out = augment(images, generator(), only(brightness=0.4))
    assert torch.allclose(out, out[:, :1, :1, :1].expand_as(out))
    assert out.min() >= 0.3 - 1e-6 and out.max() <= 0.7 + 1e-6 and out.std() > 0.05


@pytest.mark.parametrize("c", [3, 1])
def test_contrast_keeps_the_mean_luma(c):
    images = 0.4 + 0.2 * torch.rand(20, c, 16, 16, generator=generator())
    out = augment(images, generator(), only(contrast=0.4))
    weights = LUMA if c == 3 else torch.ones(1)
    mean = [torch.einsum("nchw,c->n", v, weights) / 256 for v in (images, out)]
    assert torch.allclose(*mean, atol=1e-5)
    factor = out.std((1, 2, 3)) / images.std((1, 2, 3))
    assert factor.min() > 0.59 and factor.max() < 1.41 and factor.std() > 0.1


@pytest.mark.parametrize("change", [{"saturation": 0.4}, {"hue": 0.1}, {"grayscale_p": 1}])
def test_chroma_changes_keep_luma(change):
    images = 0.35 + 0.3 * torch.rand(20, 3, 8, 8, generator=generator())
    out = augment(images, generator(), only(**change))
    luma = [torch.einsum("nchw,c->nhw", v, LUMA) for v in (images, out)]
    assert torch.allclose(*luma, atol=1e-5)
    assert (out - images).abs().amax((1, 2, 3)).min() > 1e-4
    if "grayscale_p" in change:
        assert torch.allclose(out, luma[0][:, None].expand_as(out), atol=1e-5)


def test_color_matrix_is_the_product_of_its_steps():
    b, k, s, t = 1.2, 0.7, 1.3, 0.4
    luma = LUMA.expand(3, 3).double()
    yiq = torch.tensor([views.LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)], dtype=torch.float64)
    turn = torch.tensor([[1, 0, 0], [0, math.cos(t), -math.sin(t)], [0, math.sin(t), math.cos(t)]]).double()
    saturate = s * torch.eye(3).double() + (1 - s) * luma
    expected = yiq.inverse() @ turn @ yiq @ saturate * (b * k)
    out = views.color_matrix(*(torch.tensor([v]) for v in (b, k, s, t)))[0]
    assert torch.allclose(out, expected.float(), atol=3e-3)  # the textbook YIQ rows are rounded to 3 digits


def test_hue_turns_the_hue_the_same_way_for_all_colours():
    shift = []
    for rgb in ([0.6, 0.4, 0.4], [0.4, 0.6, 0.4], [0.4, 0.4, 0.6]):
        one = torch.ones(1)
        out = views.color_matrix(one, one, one, torch.tensor([0.3])) @ torch.tensor(rgb)
        before, after = colorsys.rgb_to_hsv(*rgb)[0], colorsys.rgb_to_hsv(*out[0].tolist())[0]
        shift.append((after - before + 0.5) % 1 - 0.5)
    assert min(shift) * max(shift) > 0 and all(0.01 < abs(v) < 0.12 for v in shift)


def test_probabilities_are_per_image():
    images = torch.rand(2000, 3, 2, 2, generator=generator())
    out = augment(images, generator(), only(grayscale_p=0.2))
    grey = (out.amax(1) - out.amin(1)).amax((1, 2)) < 1e-5
    assert grey.float().mean() == pytest.approx(0.2, abs=0.03)
    out = augment(images, generator(), only(brightness=0.4, jitter_p=0.8))
    same = (out - images).abs().amax((1, 2, 3)) < 1e-5
    assert same.float().mean() == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 2, 8, 8), (2, 4, 8, 8)])
def test_wrong_shapes_say_so(shape):
    with pytest.raises(ValueError, match="C = 3 or 1"):
        augment(torch.zeros(shape), generator())


def test_wrong_values_say_so():
    with pytest.raises(ValueError, match="divide them by 255"):
        augment(torch.full((1, 3, 4, 4), 200.0), generator())
    with pytest.raises(ValueError, match="divide them by 255"):
        augment(torch.full((1, 3, 4, 4), float("nan")), generator())
    with pytest.raises(TypeError, match="uint8"):
        augment(torch.zeros(1, 3, 4, 4, dtype=torch.int64), generator())


@pytest.mark.parametrize(
    "bad",
    [
        {"scale": (0, 1)},
        {"scale": (0.5, 0.2)},
        {"ratio": (2, 1)},
        {"hue": 0.6},
        {"flip_p": 1.5},
        {"brightness": -0.1},
        {"scale": (0.5, 1.5)},
        {"jitter_p": float("nan")},
    ],
)
def test_config_rejects_nonsense_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ViewConfig(**bad)
