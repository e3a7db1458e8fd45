import os
import warnings

import numpy as np
import pytest
import torch

from fedqssl.data import pixels
from fedqssl.data.folder import read_folder
from fedqssl.data.images import DataError, DataWarning
from fedqssl.data.partition import build_partition
from fedqssl.data.registry import is_labeled

Image = pytest.importorskip("PIL.Image")


def picture(path, color=(200, 100, 50), size=(40, 40), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)


def fill(root, classes=("cat", "dog"), each=10):
    for i, name in enumerate(classes):
        for j in range(each):
            picture(root / name / f"{j}.png", (i * 50, j * 10, 7))


def test_sub_folders_are_classes_and_splits_are_disjoint_and_deterministic(tmp_path):
    fill(tmp_path)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    train, test = read_folder(tmp_path), read_folder(tmp_path, "test")
    assert train.class_names == test.class_names == ("cat", "dog")
    assert train.labels.tolist() == [0] * 8 + [1] * 8 and test.labels.tolist() == [0] * 2 + [1] * 2
    assert train.groups == ("cat",) * 8 + ("dog",) * 8
    colors = [tuple(image[:, 0, 0].tolist()) for data in (train, test) for image in data.images]
    assert len(set(colors)) == 20
    assert torch.equal(read_folder(tmp_path).images, train.images)


def test_without_folders_there_are_no_labels(tmp_path):
    for j in range(10):
        picture(tmp_path / f"{j}.jpg", size=(30 + j, 50))
    data = read_folder(tmp_path, size=16)
    assert data.images.shape == (8, 3, 16, 16) and data.labels is None and data.groups is None


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_train_and_test_folders_share_their_classes(tmp_path, held_out):
    fill(tmp_path / "train", ("a", "c"), 3)
    fill(tmp_path / held_out, ("b", "c"), 2)
    train, test = read_folder(tmp_path), read_folder(tmp_path, "test")
    assert train.class_names == test.class_names == ("a", "b", "c")
    assert train.labels.tolist() == [0, 0, 0, 2, 2, 2] and test.labels.tolist() == [1, 1, 2, 2]


def test_the_share_held_out_is_a_setting(tmp_path):
    fill(tmp_path / "plain")
    for holdout, held in ((0.0, 0), (0.2, 4), (0.5, 10)):
        train, test = (read_folder(tmp_path / "plain", split, 8, holdout=holdout) for split in ("train", "test"))
        assert (len(train), len(test)) == (20 - held, held) and test.images.shape[1:] == (3, 8, 8)
        assert test.class_names == train.class_names and test.labels.dtype == torch.int64
    fill(tmp_path / "own" / "train")
    fill(tmp_path / "own" / "test", each=3)
    assert (
        len(read_folder(tmp_path / "own", "test", holdout=0.0)) == 6
    )  # photos of one's own for testing are not a share
    picture(tmp_path / "loose" / "a.png")
    assert len(read_folder(tmp_path / "loose", holdout=0.0)) == 1
    assert read_folder(tmp_path / "loose", "test", holdout=0.0).labels is None


def test_whether_there_are_labels_is_known_without_reading_a_picture(tmp_path):
    for name in (
        "flat/a.png",
        "classes/cat/a.png",
        "classes/dog/a.png",
        "all/p/cat/a.png",
        "all/q/cat/a.png",
        "all/q/d/a.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not a picture")
    found = {
        (n, natural): is_labeled(f"folder:{tmp_path / n}", natural=natural)
        for n in ("flat", "classes", "all")
        for natural in (False, True)
    }
    assert {key for key, labeled in found.items() if labeled} == {("classes", False), ("all", False), ("all", True)}
    assert is_labeled("cifar10") and is_labeled("scenes", natural=True)


def test_only_train_is_split(tmp_path):
    fill(tmp_path / "train")
    assert len(read_folder(tmp_path)) == 16 and len(read_folder(tmp_path, "test")) == 4


def test_a_class_may_be_named_train(tmp_path):
    fill(tmp_path, ("bus", "train"))
    assert read_folder(tmp_path).class_names == ("bus", "train") and len(read_folder(tmp_path)) == 16


def test_two_levels_are_clients_then_classes(tmp_path):
    fill(tmp_path / "phone-a", ("cat", "dog"), 5)
    fill(tmp_path / "phone-b", ("dog",), 5)
    data = read_folder(tmp_path)
    assert data.class_names == ("cat", "dog") and set(data.groups) == {"phone-a", "phone-b"}
    assert data.labels.tolist() == [0] * 4 + [1] * 8


def test_two_levels_make_a_natural_partition(tmp_path):
    for phone in ("phone-a", "phone-b"):
        fill(tmp_path / phone, ("cat", "dog"), 10)
    partition = build_partition(read_folder(tmp_path), "natural", buffer_ratio=0.1)
    assert list(partition.clients) == ["phone-a", "phone-b"]


def test_one_inner_folder_name_is_no_class(tmp_path):
    for name in ("n01", "n02"):
        fill(tmp_path / name, ("images",), 5)
    data = read_folder(tmp_path)
    assert data.class_names == ("n01", "n02") and set(data.groups) == {"n01", "n02"}


def test_linked_folders_are_read_once(tmp_path):
    fill(tmp_path / "data")
    os.symlink(tmp_path / "data", tmp_path / "data" / "cat" / "loop")
    assert len(read_folder(tmp_path / "data")) == 16


def one(path, size=8):
    return pixels.decode(path, str(path), size)


@pytest.mark.parametrize(
    "mode, color, suffix, expected",
    [
        ("L", 90, "png", (90, 90, 90)),
        ("1", 1, "png", (255, 255, 255)),
        ("RGB", (10, 20, 30), "bmp", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 255), "png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
        ("LA", (40, 255), "png", (40, 40, 40)),
        ("CMYK", (0, 0, 0, 0), "tiff", (255, 255, 255)),
        ("I;16", 257 * 100, "png", (100, 100, 100)),
        ("I;16", 257 * 100, "tiff", (100, 100, 100)),
        ("I;16", 257, "png", (1, 1, 1)),
        ("I;16B", 100, "tiff", (0, 0, 0)),
        ("I", 257 * 100, "tiff", (100, 100, 100)),
        ("YCbCr", (100, 128, 128), "jpg", (100, 100, 100)),
        ("F", 0.2, "tiff", (51, 51, 51)),
        ("P", 0, "gif", None),
    ],
)
def test_every_kind_of_picture(tmp_path, mode, color, suffix, expected):
    path = tmp_path / f"x.{suffix}"
    Image.new(mode, (20, 12), color).save(path)
    found = one(path)
    assert found.shape == (8, 8, 3) and found.dtype == np.uint8
    assert expected is None or (found == expected).all()


def test_palette_with_transparency(tmp_path):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.png", transparency=1)
    assert (one(tmp_path / "a.png") == (10, 20, 30)).all() and (one(tmp_path / "b.png") == 255).all()


def test_the_centre_square_is_taken_and_exif_turns_the_picture(tmp_path):
    canvas = np.zeros((20, 60, 3), np.uint8)
    canvas[:, 20:40] = 255
    Image.fromarray(canvas).save(tmp_path / "wide.png")
    assert (one(tmp_path / "wide.png", 10)[:, 1:-1] == 255).all()
    half = np.zeros((16, 16, 3), np.uint8)
    half[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(half).save(tmp_path / "turned.png", exif=exif)
    assert one(tmp_path / "turned.png", 16)[:8].max() == 0


def test_a_corrupt_image_is_named_and_fatal_or_skipped(tmp_path):
    fill(tmp_path)
    for j in range(10):  # whichever the split takes
        (tmp_path / "dog" / f"{j}.png").write_bytes((tmp_path / "dog" / f"{j}.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"dog.\d\.png: corrupt image .*skip") as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.warns(DataWarning, match=r"skipped 8: .*dog.\d\.png.* and 3 more"):
        data = read_folder(tmp_path, on_bad="skip")
    assert data.labels.tolist() == [0] * 8 and data.class_names == ("cat", "dog") and len(data.groups) == 8


def test_loose_image_beside_folders(tmp_path):
    fill(tmp_path)
    picture(tmp_path / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png: an image beside folders"):
        read_folder(tmp_path)
    with pytest.warns(DataWarning, match=r"loose\.png"):
        assert len(read_folder(tmp_path, on_bad="skip")) == 16


def test_bombs_are_refused_before_decoding(tmp_path, monkeypatch):
    picture(tmp_path / "a" / "bomb.png", size=(100, 100))
    picture(tmp_path / "a" / "other.png", size=(100, 100))
    monkeypatch.setattr(pixels, "MAX_PIXELS", 9_999)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="100x100 pixels"):
            read_folder(tmp_path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no images here"):
        read_folder(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match="train: no images here"):
        read_folder(tmp_path)
    (tmp_path / "train" / "bad.png").write_text("x")
    with pytest.warns(DataWarning), pytest.raises(DataError, match="none of the 1 images"):
        read_folder(tmp_path, on_bad="skip")
    picture(tmp_path / "test" / "a" / "x.png")
    with pytest.raises(DataError, match="only one of train and test has class folders"):
        read_folder(tmp_path)
    picture(tmp_path / "single" / "x.png")
    with pytest.raises(DataError, match="too few for a test split"):
        read_folder(tmp_path / "single", "test")
    for wrong in ({"split": "val"}, {"size": 0}, {"on_bad": "ignore"}):
        with pytest.raises(DataError):
            read_folder(tmp_path, **wrong)
