"""Images from memory: what a caller may pass, what is stored, and what is read back."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedqssl.data.arrays import held_out, in_memory, write_arrays
from fedqssl.data.images import DataError, ImageSet
from fedqssl.data.registry import is_labeled, load_dataset

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])
TENSOR = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


class Items:
    """A torch data set: items by position, a length, and torchvision's ``classes``."""

    classes = ("ant", "bee", "cat")

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, i):
        return self.make(i)


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS, LABELS),
        (TENSOR, torch.from_numpy(LABELS)),
        (TENSOR.float() / 255, LABELS.tolist()),
        (list(PIXELS), LABELS),
        ([Image.fromarray(p) for p in PIXELS], LABELS),
        Items(lambda i: (Image.fromarray(PIXELS[i]), int(LABELS[i]))),
        Items(lambda i: (TENSOR[i].float() / 255, torch.tensor(LABELS[i]))),
        Items(lambda i: {"image": PIXELS[i], "label": LABELS[i]}),
        [(PIXELS[i], LABELS[i]) for i in range(6)],
    ],
)
def test_everything_becomes_the_same_images(data):
    found = in_memory(data, 32)["train"]
    assert torch.equal(found.images, TENSOR)
    assert found.labels.tolist() == LABELS.tolist()
    assert found.class_names == (("ant", "bee", "cat") if isinstance(data, Items) else None)


@pytest.mark.parametrize("data", [PIXELS, TENSOR, list(PIXELS), Items(lambda i: TENSOR[i])])
def test_without_labels(data):
    found = in_memory({"train": data}, 32)["train"]
    assert torch.equal(found.images, TENSOR) and found.labels is None


def test_grey_arrays_and_pictures_of_different_sizes():
    assert in_memory(PIXELS[..., 0], 32)["train"].images.shape == (6, 1, 8, 8)
    sizes = [np.zeros((n, n + 3, 3), dtype=np.uint8) for n in (8, 20)]
    assert in_memory(sizes, 16)["train"].images.shape == (2, 3, 16, 16)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (7, "cannot be a int"),
        ((PIXELS, LABELS[:5]), "6 whole numbers, one for each image"),
        ((PIXELS, LABELS / 2), "whole numbers"),
        (TENSOR.float(), r"must lie in \[0, 1\], not \[0, 255\]; leave out normalization"),
        ({"valid": PIXELS}, "pass train and, if there is one, test"),
        ({"test": PIXELS}, "pass train"),
        ([], "no images"),
        (Items(lambda i: (PIXELS[i], 0) if i else PIXELS[i]), "5 of 6 items have a label"),
    ],
)
def test_what_cannot_be_used_says_what_is_expected(data, words):
    with pytest.raises(DataError, match=words):
        in_memory(data, 32)


def test_stored_once_and_read_back(tmp_path):
    names, clients = ("ant", "bee", "cat"), tuple("aabbcc")
    train = ImageSet(TENSOR, torch.from_numpy(LABELS), names, clients)
    folder = write_arrays({"train": train, "test": ImageSet(TENSOR[:2], torch.tensor([1, 0]), names)}, tmp_path)
    again = write_arrays({"train": train, "test": ImageSet(TENSOR[:2], torch.tensor([1, 0]), names)}, tmp_path)
    other = write_arrays({"train": ImageSet(TENSOR)}, tmp_path)
    assert folder == again != other and folder.parent == tmp_path
    found, test = (load_dataset(f"arrays:{folder}", split, size=8) for split in ("train", "test"))
    assert torch.equal(found.images, TENSOR) and found.labels.tolist() == LABELS.tolist()
    assert found.class_names == names and found.groups == clients
    assert torch.equal(test.images, TENSOR[:2]) and test.labels.tolist() == [1, 0]
    assert is_labeled(f"arrays:{folder}") and not is_labeled(f"arrays:{other}")
    assert load_dataset(f"arrays:{folder}", "train", size=4).images.shape == (6, 3, 4, 4)


def test_without_a_test_file_a_share_is_held_out(tmp_path):
    data = ImageSet(torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1), torch.arange(40))
    folder = write_arrays({"train": data}, tmp_path)
    train, test = (load_dataset(f"arrays:{folder}", split, size=1, holdout=0.25) for split in ("train", "test"))
    assert len(test) == 10 and sorted(train.labels.tolist() + test.labels.tolist()) == list(range(40))
    whole = load_dataset(f"arrays:{folder}", "train", size=1, holdout=0.0)
    assert len(whole) == 40 and len(load_dataset(f"arrays:{folder}", "test", size=1, holdout=0.0)) == 0
    with pytest.raises(DataError, match="1 images are too few to hold out 50%"):
        held_out(data.subset([0]), "test", 0.5, "here")


@pytest.mark.parametrize("content", [b"", b"not a zip", "object"])
def test_files_that_are_not_ours_are_refused_in_one_line(tmp_path, content):
    if content == "object":  # pickled objects would run code
        np.savez(tmp_path / "train.npz", images=np.array([{}], dtype=object))
    else:
        (tmp_path / "train.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.npz cannot be read") as refused:
        load_dataset(f"arrays:{tmp_path}", "train")
    assert "\n" not in str(refused.value)


def test_a_missing_file_and_a_missing_array(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_dataset(f"arrays:{tmp_path}", "train")
    np.savez(tmp_path / "train.npz", pictures=PIXELS)
    with pytest.raises(DataError, match="no array 'images'"):
        load_dataset(f"arrays:{tmp_path}", "train")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"])})
    rows = {"image": [Image.fromarray(p) for p in PIXELS], "label": LABELS.tolist()}
    made = datasets.Dataset.from_dict(rows, features=features)
    path = tmp_path_factory.mktemp("hub")
    datasets.DatasetDict({"train": made, "test": made.select(range(2))}).save_to_disk(path / "both")
    made.remove_columns("label").save_to_disk(path / "plain")
    return path


def test_hugging_face_data_sets_by_path_and_as_objects(saved):
    import datasets

    found = load_dataset(f"hf:{saved / 'both'}", "train", size=8)
    assert torch.equal(found.images, TENSOR) and found.labels.tolist() == LABELS.tolist()
    assert found.class_names == ("ant", "bee", "cat")
    assert len(load_dataset(f"hf:{saved / 'both'}", "test", size=8)) == 2
    given = in_memory(datasets.load_from_disk(saved / "both"), 8)
    assert torch.equal(given["train"].images, TENSOR) and given["test"].labels.tolist() == [0, 1]


def test_hugging_face_data_without_labels_or_test_split(saved):
    spec = f"hf:{saved / 'plain'}"
    assert not is_labeled(spec) and is_labeled(f"hf:{saved / 'both'}")
    train, test = (load_dataset(spec, split, size=8, holdout=0.5) for split in ("train", "test"))
    assert len(train) == len(test) == 3 and train.labels is None


def test_a_hub_that_cannot_be_reached(monkeypatch, saved):
    import datasets

    def unreachable(name):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"hf:a/b cannot be loaded \(Couldn't reach 'a/b' on the Hub\); check the name"):
        load_dataset("hf:a/b", "train")


def test_a_folder_without_its_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="unknown dataset 'photos'; it is a folder, so write folder:photos"):
        load_dataset("photos", "train")


def test_a_hugging_face_path_that_is_not_one(tmp_path, saved):
    with pytest.raises(DataError, match="cannot be loaded") as refused:
        load_dataset(f"hf:{tmp_path}", "train")
    assert "\n" not in str(refused.value)
