"""Pictures as a model takes them, and its answers by name: without a model."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fedqssl.data.images import with_channels
from fedqssl.data.pictures import one_picture
from fedqssl.device.model import DeviceModel


def test_grey_is_pillows():
    """Red, green and blue do not weigh the same."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    want = torch.from_numpy(np.array(Image.fromarray(noise).convert("L")))
    rgb = torch.from_numpy(noise).permute(2, 0, 1)[None]
    assert torch.equal(with_channels(rgb, 1)[0, 0], want)
    assert with_channels(rgb, 3) is rgb
    three = with_channels(with_channels(rgb, 1), 3)
    assert three.shape == (1, 3, 9, 7) and all(torch.equal(three[0, c], want) for c in range(3))


def test_channels_keep_their_order_however_a_picture_comes():
    red, green, blue = 200, 100, 50
    array = np.empty((8, 8, 3), dtype=np.uint8)
    array[:] = red, green, blue
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for item in (array, tensor, Image.fromarray(array)):
        assert one_picture(item, "x", 8, 3)[:, 0, 0].tolist() == [red, green, blue]


def test_answers_are_named_by_their_place_and_begin_with_the_likeliest():
    model = DeviceModel(SimpleNamespace(class_names=["cat", "dog", "owl"]), None, None)
    first, second = model.answers(torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.375, 0.125]]), top=2)
    assert (first.name, second.name) == ("owl", "cat") and first.probability == pytest.approx(0.7)
    assert [name for name, _ in first.top] == ["owl", "dog"] and second.top == (("cat", 0.5), ("dog", 0.375))


def test_a_prediction_names_its_file_and_a_model_is_one_line(tmp_path):
    import fedqssl

    model = fedqssl.load(Path(__file__).parents[1] / "compat" / "before_restructure" / "phone.fqssl")
    path = tmp_path / "bird.png"
    Image.fromarray(np.zeros((20, 30, 3), dtype=np.uint8)).save(path)
    assert [p.file for p in model.predict([path, np.zeros((9, 9, 3), dtype=np.uint8), str(path)])] == [
        *(str(path), None),
        str(path),
    ]
    assert [p.file for p in model.predict(tmp_path)] == [str(path)]
    assert repr(model).startswith("<DeviceModel ") and "\n" not in repr(model) and len(repr(model)) < 120
