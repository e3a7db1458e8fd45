"""Views as settings: presets, single changes, and views smaller than the images."""

import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.config.load import load_config, to_toml
from fedqssl.config.schema import RunConfig, make_config
from fedqssl.config.sections import ViewsConfig
from fedqssl.federated.protocol import protocol
from fedqssl.ssl import ViewConfig, two_views
from fedqssl.ssl.presets import CANDIDATES, VIEW_PRESETS, view_config


def images(n: int = 40, c: int = 3, size: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (n, c, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def views(config: ViewConfig | None, n: int = 40, size: int = 32) -> torch.Tensor:
    return two_views(images(n, size=size), torch.Generator().manual_seed(1), config)


def test_the_default_is_what_it_always_was():
    assert view_config(RunConfig().views) == ViewConfig() == VIEW_PRESETS["objects"]
    assert torch.equal(views(view_config(ViewsConfig())), views(None))
    assert torch.equal(views(ViewConfig(size=32)), views(None))


def test_presets_are_those_of_the_settings():
    annotation = ViewsConfig.model_fields["preset"].annotation
    assert {*VIEW_PRESETS, "auto"} == set(annotation.__args__)
    assert set(CANDIDATES) < set(VIEW_PRESETS)
    assert view_config(ViewsConfig(preset="auto", size=24)) == view_config(ViewsConfig(preset=CANDIDATES[0], size=24))
    assert len(set(VIEW_PRESETS.values())) == len(VIEW_PRESETS)


def test_what_has_a_right_way_round_is_never_mirrored():
    assert [name for name, config in VIEW_PRESETS.items() if config.flip_p == 0] == [
        "shapes",
        "signs",
        "documents",
        "none",
    ]
    ramp = torch.arange(32, dtype=torch.uint8).mul(7).expand(200, 1, 32, 32).contiguous()
    for name, mirrored in (("signs", False), ("objects", True)):
        out = two_views(ramp, torch.Generator().manual_seed(0), VIEW_PRESETS[name])
        assert bool((out[..., -1] < out[..., 0]).any()) == mirrored


def test_without_changes_a_view_is_a_crop():
    whole = view_config(ViewsConfig(preset="none", scale=(1, 1), ratio=(1, 1)))
    assert torch.allclose(views(whole)[:40], images() / 255, atol=1e-6)


def test_every_setting_reaches_the_views():
    changes = {
        "scale": (0.3, 0.9),
        "ratio": (0.9, 1.1),
        "flip": 0.1,
        "brightness": 0.2,
        "contrast": 0.3,
        "saturation": 0.5,
    }
    changes |= {"hue": 0.05, "jitter": 0.7, "grayscale": 0.4, "size": 24}
    assert set(changes) | {"preset"} == set(ViewsConfig.model_fields)
    for preset, base in VIEW_PRESETS.items():
        found = view_config(ViewsConfig(preset=preset, **changes))
        assert list(vars(found).values()) == list(changes.values())
        one = view_config(ViewsConfig(preset=preset, flip=0.25))
        assert one.flip_p == 0.25 and one.scale == base.scale


@pytest.mark.parametrize("side, size", [(32, 24), (32, 16), (20, 32), (64, 24)])
def test_views_of_another_size_show_the_same_crop(side, size):
    """A picture that changes linearly is the same line at any size: its resized view can be written down."""
    ramp = torch.linspace(0, 1, side).expand(3, 1, side, side).contiguous()
    config = ViewConfig(scale=(1, 1), ratio=(1, 1), flip_p=0, jitter_p=0, grayscale_p=0, size=size)
    out = two_views(ramp, torch.Generator().manual_seed(0), config)
    assert out.shape == (6, 1, size, size) and out.is_contiguous(memory_format=torch.channels_last)
    position = ((torch.arange(size) + 0.5) * side / size - 0.5).clamp(0, side - 1)
    assert torch.allclose(out, (position / (side - 1)).expand_as(out), atol=1e-5)


def test_smaller_views_see_the_crops_of_larger_ones():
    """The same generator state crops, flips and colours the same way at any size, so their means nearly agree."""
    large, small = views(ViewConfig()), views(ViewConfig(size=24))
    assert small.shape == (80, 3, 24, 24)
    assert torch.allclose(large.mean((2, 3)), small.mean((2, 3)), atol=0.08)


def test_settings_from_words_and_back():
    config = load_config("smoke", ["views.preset=signs", "views.scale=0.4,1", "views.size=24", "views.flip=0.1"])
    assert config.views == ViewsConfig(preset="signs", scale=(0.4, 1.0), size=24, flip=0.1)
    assert "scale = [0.4, 1.0]" in to_toml(config)
    assert load_config("smoke", ["views.size=24", "views.size=none"]).views.size is None


def test_protocols_of_earlier_runs_stay_theirs():
    plain = RunConfig()
    assert protocol(plain) == protocol(make_config({"views.preset": "objects"}))
    assert protocol(plain) != protocol(make_config({"views.size": 24}))
    assert protocol(make_config({"views.preset": "signs"})) != protocol(make_config({"views.preset": "none"}))


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("scale", "0.5,1.5", "increasing numbers up to 1"),
        ("scale", "0.9,0.2", "increasing"),
        ("ratio", "2,1", "increasing"),
        ("scale", "0.5", "views.scale"),
        ("flip", 1.5, "views.flip"),
        ("hue", 0.6, "views.hue"),
        ("size", 0, "views.size"),
        ("preset", "faces", "views.preset"),
        ("fliip", 0.5, "did you mean 'views.flip'"),
    ],
)
def test_wrong_settings_say_so(key, value, says):
    with pytest.raises(ConfigError, match=says):
        make_config({f"views.{key}": value})


def test_a_view_has_a_size():
    with pytest.raises(ValueError, match="size"):
        ViewConfig(size=0)
