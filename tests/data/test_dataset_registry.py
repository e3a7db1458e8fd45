import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedqssl.data.digits import digits
from fedqssl.data.images import DataError
from fedqssl.data.registry import DATASETS, kept_datasets, load_dataset
from fedqssl.data.scenes import scenes
from fedqssl.evaluation.probe import linear_probe


def test_every_entry_has_one_line():
    assert list(DATASETS) == ["scenes", "digits", "cifar10", "cifar100", "folder", "parquet", "arrays", "hf"]
    assert all(name == entry.name and entry.description.count("\n") == 0 for name, entry in DATASETS.items())


def test_scenes():
    data = load_dataset("scenes", "test")
    assert torch.equal(data.images, scenes(2000, "test").images)
    assert load_dataset("scenes", "test", size=16).images.shape == (2000, 3, 16, 16)


@pytest.fixture
def fake_sklearn(monkeypatch):
    bunch = SimpleNamespace(images=np.full((20, 8, 8), 16.0), target=np.arange(20) % 10)
    bunch.images[::2] = 0
    module = SimpleNamespace(load_digits=lambda: bunch)
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace(datasets=module))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)


@pytest.mark.usefixtures("fake_sklearn")
def test_digits_are_grey_enlarged_and_split():
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    assert train.images.shape == (16, 1, 32, 32) and test.images.shape == (4, 1, 32, 32)
    assert test.labels.tolist() == [4, 9, 4, 9] and train.class_names == tuple("0123456789")
    assert test.images.flatten(1).float().mean(1).tolist() == [0, 255, 0, 255]
    with pytest.raises(DataError, match="split"):
        digits("val")


def test_real_digits():
    pytest.importorskip("sklearn")
    train, test = (load_dataset("digits", split, size=8) for split in ("train", "test"))
    assert (len(train), len(test)) == (1438, 359)
    x, y = train.images.flatten(1), test.images.flatten(1)
    assert linear_probe(x, train.labels, y, test.labels, 10).accuracy > 0.9


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"needs scikit-learn: pip install 'fedqssl\[data\]'"):
        load_dataset("digits", "train")


def test_folder_and_parquet_take_a_path(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for j in range(5):
        (tmp_path / f"a:{j % 2}").mkdir(exist_ok=True)
        image.new("RGB", (50, 40)).save(tmp_path / f"a:{j % 2}" / f"{j}.png")
    data = load_dataset(f"folder:{tmp_path}", "train", size=8)
    assert data.images.shape[1:] == (3, 8, 8) and data.class_names == ("a:0", "a:1")
    with pytest.raises(DataError, match="no such folder"):
        load_dataset(f"parquet:{tmp_path / 'nowhere'}", "train")


def test_cifar_looks_in_data_dir(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(bytes([3]) + bytes(3072))
    data = load_dataset("cifar10", "test", data_dir=tmp_path, size=16)
    assert data.images.shape == (1, 3, 16, 16) and data.labels.tolist() == [3]


def test_kept_sets_are_read_once_however_many_images_are_wanted(tmp_path, monkeypatch):
    image, read = pytest.importorskip("PIL.Image"), []
    for j in range(6):
        image.new("L", (8, 8), 40 * j).save(tmp_path / f"{j}.png")
    entry = DATASETS["folder"]
    counting = dataclasses.replace(entry, load=lambda request: read.append(request) or entry.load(request))
    monkeypatch.setitem(DATASETS, "folder", counting)
    with kept_datasets():
        sizes = [len(load_dataset(f"folder:{tmp_path}", "train", size=8, images=n)) for n in (2, 3, 100, None)]
    assert sizes[:2] == [2, 3] and sizes[2] == sizes[3] > 3 and len(read) == 1


@pytest.mark.parametrize(
    "spec, arguments, message",
    [
        ("scene", {}, "did you mean 'scenes'"),
        ("cifar-10", {}, "did you mean 'cifar10'"),
        ("imagenet", {}, "choose from scenes, digits, cifar10, cifar100, folder:PATH, parquet:PATH"),
        ("", {}, "choose from"),
        ("folder", {}, "write folder:PATH"),
        ("parquet:", {}, "write parquet:PATH"),
        ("scenes:x", {}, "takes no path"),
        ("scenes", {"split": "val"}, "use train or test"),
        ("scenes", {"size": 0}, "size"),
        ("scenes", {"on_bad": "maybe"}, "on_bad"),
        ("scenes", {"images": 0}, "images must be at least 1"),
    ],
)
def test_bad_requests(spec, arguments, message):
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(spec, **({"split": "train"} | arguments))
    assert "\n" not in str(caught.value)
