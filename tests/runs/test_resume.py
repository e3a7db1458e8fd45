"""Runs that go on elsewhere, with other settings or with a model that draws random numbers; folders as people have them."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import fedqssl
from fedqssl.data.from_config import settled
from fedqssl.data.scenes import scenes
from fedqssl.federated.context import build_simulation
from fedqssl.federated.protocol import protocol
from fedqssl.runs import lifecycle, resume, start
from fedqssl.runs.evaluate import some
from fedqssl.runs.folder import RunError
from tiny_run import figures, known_run, model_bytes, rounds_of, silent, stopped_after, tiny, tiny_context


@pytest.fixture(scope="module")
def phones(tmp_path_factory) -> Path:
    """A folder per client, pictures inside, no classes."""
    home, data = tmp_path_factory.mktemp("data"), scenes(90)
    for i, image in enumerate(data.images):
        place = home / "phones" / f"phone-{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")
    return home


def broken_off(out, **changes):
    """A run that ends after its first round."""
    with stopped_after(1):
        start(tiny(**changes), out, say=silent)


def test_a_run_goes_on_from_another_folder(phones, tmp_path, monkeypatch, plots):
    """And its data are the same ones however their folder is written."""
    monkeypatch.chdir(phones)
    changes = {"data": "folder:phones", "partition": "natural", "evaluation.knn_every": 0}
    broken_off(tmp_path / "a", **changes)
    os.chdir("/")
    result = fedqssl.resume(tmp_path / "a", say=silent)
    for plot in ("curves.png", "partition.png"):  # sizes, where there are no labels
        assert (tmp_path / "a" / plot).stat().st_size > 5000
        assert f"![{plot}]({plot})" in (tmp_path / "a" / "summary.md").read_text()
    with pytest.raises(RunError, match="is a file; give the run's folder"):
        resume(tmp_path / "a" / "config.toml")
    assert result.global_accuracy is None and result.local_accuracy is None  # whose a picture is, is no class
    whole = start(tiny(**{**changes, "data": f"folder:{phones}/phones"}), tmp_path / "b", say=str)
    assert model_bytes(tmp_path / "a") == model_bytes(tmp_path / "b") and result.protocol == whole.protocol
    monkeypatch.chdir(phones)
    assert protocol(settled(tiny(**changes))[0]) == whole.protocol


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A run of which one round is done."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    broken_off(folder)
    return folder


def test_a_run_does_not_go_on_with_other_settings(begun, tmp_path, monkeypatch):
    shutil.copytree(begun, tmp_path / "a")
    path = tmp_path / "a" / "config.toml"
    before = path.read_text()
    path.write_text(before.replace("lr = 0.3", "lr = 0.2"))
    with pytest.raises(RunError, match=r"config.toml was changed after the run began: restore it"):
        resume(tmp_path / "a")
    path.write_text(before.replace("workers = 1", "workers = 2"))  # where it runs is the user's to choose
    monkeypatch.setattr(lifecycle, "run_to_end", lambda context, folder, progress: context.config.workers)
    assert resume(tmp_path / "a", say=silent) == 2


def test_a_run_resumes_to_the_same_bytes(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "a")
    assert figures(resume(tmp_path / "a", say=silent)) == figures(known_run())
    assert model_bytes(tmp_path / "a") == model_bytes(known_run().folder)


def test_a_run_does_not_go_on_with_other_images(begun, tmp_path, monkeypatch):
    """One pixel, or one label, is enough; the partition may be the same."""
    shutil.copytree(begun, tmp_path / "a")
    real = lifecycle.build_simulation

    def with_another_pixel(config, progress=None):
        context = real(config, progress)
        images = context.train.images.clone()
        images[0, 0, 0, 0] ^= 1
        return dataclasses.replace(context, train=dataclasses.replace(context.train, images=images))

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "build_simulation", with_another_pixel)
        with pytest.raises(RunError, match="have changed: restore them"):
            resume(tmp_path / "a", say=silent)


def test_a_model_with_dropout_gives_the_same_bytes(tmp_path, monkeypatch):
    """It draws from torch's generator, which belongs to everybody."""
    (tmp_path / "model_with_dropout.py").write_text(
        "from torch import nn\n"
        "def make(width, in_channels):\n"
        "    body = [nn.Conv2d(in_channels, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.5)]\n"
        "    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(rounds_of(tiny_context(model="model_with_dropout:make"))[0].aggregated)
        assert torch.initial_seed() == seed
    assert found[0] == found[1]


def test_a_part_of_the_images_is_not_the_first_ones():
    part = some(1000, 100)
    assert len(part) == len(set(part.tolist())) == 100 and 350 < part.float().mean() < 650
    assert torch.equal(part, some(1000, 100))
    assert some(10, None) == some(10, 10) == slice(None)


def test_classes_inside_clients_stay_classes(phones, tmp_path):
    """Two levels: whose, then what."""
    images = scenes(20).images
    for client in ("a", "b"):
        for label in ("cat", "dog"):
            home = tmp_path / "two" / client / label
            home.mkdir(parents=True)
            for i in range(20):
                Image.fromarray(images[i].permute(1, 2, 0).numpy()).save(home / f"{i}.png")
    changes = {"data": f"folder:{tmp_path}/two", "partition": "natural", "clients": 2, "bits": [4, 8]}
    assert build_simulation(tiny(**changes)).train.labels is not None
    assert build_simulation(tiny(data=f"folder:{phones}/phones", partition="natural")).train.labels is None
