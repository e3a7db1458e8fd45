"""Bursts never lie on both sides of a split, whatever the split; without bursts nothing changes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.config import load_config
from fedqssl.data.bursts import Units, fitting, prefix
from fedqssl.data.folder import read_folder
from fedqssl.data.from_config import load_split, settled, training_split
from fedqssl.data.images import DataError, ImageSet
from fedqssl.data.partition import PARTITIONS, build_partition
from fedqssl.data.registry import is_labeled, load_dataset
from fedqssl.data.splits import PartitionError

Image = pytest.importorskip("PIL.Image")


def pictures(root, *names):
    """Every picture has a colour of its own, which says where it came from."""
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i // 200, i % 200, 7)).save(root / name)


def numbers(data: ImageSet) -> list[int]:
    return [200 * int(image[0, 0, 0]) + int(image[1, 0, 0]) for image in data.images]


@pytest.mark.parametrize(
    "name, burst",
    [
        ("scene12_003.jpg", "scene12"),
        ("IMG_2024-001.jpg", "IMG_2024"),
        ("2024-05-01 12.jpg", "2024-05-01"),
        ("lake-a.jpg", "lake"),
        ("frame0012.png", "frame"),
        ("0012.png", "0012"),
        ("lake.jpeg", "lake"),
        ("_7.png", "_"),
        ("lake.v2_3.png", "lake.v2"),
    ],
)
def test_prefixes(name, burst):
    assert prefix(name) == burst


def test_units_and_what_fits():
    units = Units(5, ("b", "a", "b", "c", "a"))
    assert (
        len(units) == 3 and units.images(np.array([0, 2])).tolist() == [1, 3, 4] and units.count(np.array([0, 2])) == 3
    )
    assert (
        fitting([2, 2, 1], 3) == [0, 2] and fitting([4, 5], 3) == [0] and fitting([1], 1) == [] and fitting([], 1) == []
    )


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(list(PARTITIONS)),
    sizes=st.lists(st.integers(1, 9), min_size=8, max_size=60),
    clients=st.integers(1, 4),
    holdout=st.sampled_from([0.0, 0.2, 0.5]),
    seed=st.integers(0, 1000),
)
def test_no_partition_divides_a_burst(kind, sizes, clients, holdout, seed):
    bursts = tuple(f"{i}" for i, size in enumerate(sizes) for _ in range(size))
    labels = torch.tensor([i % 4 for i, size in enumerate(sizes) for _ in range(size)])
    groups = tuple(f"site {i % clients}" for i, size in enumerate(sizes) for _ in range(size))
    data = ImageSet(torch.zeros(len(bursts), 1, 1, 1, dtype=torch.uint8), labels, None, groups, bursts)
    try:
        partition = build_partition(data, kind, clients, beta=1.0, seed=seed, holdout=holdout)
    except PartitionError as error:
        assert "\n" not in str(error)
        return
    parts = [partition.buffer, *(t for c in partition.clients.values() for t in (c.train, c.test))]
    held = [{bursts[i] for i in part.tolist()} for part in parts]
    assert torch.cat(parts).sort().values.tolist() == list(range(len(bursts)))
    assert sum(map(len, held)) == len(sizes)  # none is in two places
    if holdout:
        assert all(len(c.test) and len(c.train) >= 5 for c in partition.clients.values())


@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_bursts_of_one_are_no_bursts(kind):
    count = 300
    plain = ImageSet(
        torch.zeros(count, 1, 1, 1, dtype=torch.uint8),
        torch.arange(count) % 8,
        None,
        tuple(f"{i % 4}" for i in range(count)),
    )
    single = ImageSet(plain.images, plain.labels, None, plain.groups, tuple(f"{i:03d}" for i in range(count)))
    a, b = (build_partition(data, kind, 4, beta=1.0, seed=3).to_json() for data in (plain, single))
    assert a == b


def test_a_share_of_equal_bursts_is_held_out():
    bursts = tuple(f"{i // 4:03d}" for i in range(400))
    data = ImageSet(torch.zeros(400, 1, 1, 1, dtype=torch.uint8), torch.arange(400) // 200, None, None, bursts)
    for split in build_partition(data, "iid", 4).clients.values():
        assert 0.15 < len(split.test) / (len(split.train) + len(split.test)) < 0.25
        assert set(data.labels[split.test].tolist()) == {0, 1}


def test_prefixes_stay_on_one_side_of_a_folders_split(tmp_path):
    names = [f"{label}/scene{scene}_{i}.png" for label in ("cat", "dog") for scene in range(10) for i in range(5)]
    pictures(tmp_path, *names)
    train, test = (read_folder(tmp_path, split, 8, group="prefix") for split in ("train", "test"))
    assert len(test) == 20 and len(train) == 80 and test.labels.tolist() == [0] * 10 + [1] * 10
    assert not set(train.bursts) & set(test.bursts) and len(set(test.bursts)) == 4
    plain = read_folder(tmp_path, "test", 8)
    leaked = {names[i].rpartition("_")[0] for i in numbers(plain)} & set(train.bursts)
    assert len(leaked) > 4  # without groups, a burst that is trained on is tested on, too
    assert plain.bursts is None and numbers(plain) != numbers(test)
    assert read_folder(tmp_path, "test", 8, group="prefix", holdout=0.0).bursts == ()


def test_innermost_folders_are_bursts_and_the_others_are_read_as_ever(tmp_path):
    scenes = [f"scene-{s}/{i}.png" for s in range(5) for i in range(3)]
    pictures(tmp_path / "classes", *(f"{c}/{name}" for c in ("cat", "dog") for name in scenes))
    pictures(tmp_path / "flat", *scenes)
    pictures(tmp_path / "all", *(f"{p}/{c}/{name}" for p in ("a", "b") for c in ("cat", "dog") for name in scenes))
    found = {name: read_folder(tmp_path / name, "train", 8, group="folder") for name in ("classes", "flat", "all")}
    assert {name: data.class_names for name, data in found.items()} == dict.fromkeys(found, ("cat", "dog")) | {
        "flat": None
    }
    assert {name: len(data) for name, data in found.items()} == {"classes": 24, "flat": 12, "all": 48}
    assert set(found["all"].groups) == {"a", "b"} and set(found["classes"].groups) == {"cat", "dog"}
    assert found["classes"].bursts[0] in {f"cat/scene-{s}" for s in range(5)} and len(set(found["classes"].bursts)) == 8
    assert not is_labeled(f"folder:{tmp_path / 'flat'}", group="folder") and is_labeled(f"folder:{tmp_path / 'flat'}")


def test_one_burst_cannot_be_split(tmp_path):
    pictures(tmp_path, *(f"{label}/IMG_{i:04d}.png" for label in ("cat", "dog") for i in range(10)))
    with pytest.raises(
        DataError, match=r"20 image\(s\) in 2 burst\(s\) are too few for a test split; add images or train/"
    ):
        read_folder(tmp_path, "test", 8, group="prefix")


def test_the_setting_reaches_every_split(tmp_path):
    pictures(
        tmp_path, *(f"{label}/s{scene}_{i}.png" for label in ("cat", "dog") for scene in range(15) for i in range(4))
    )
    words = {"data": f"folder:{tmp_path}", "clients": 2, "bits": 8, "group": "prefix", "partition": "iid"}
    config = load_config("smoke", {**words, "image_size": 8, "images": 90})
    assert settled(config) == (config, [])
    (train, partition), test = training_split(config), load_split(config, "test")
    places = [partition.buffer, *(t for c in partition.clients.values() for t in (c.train, c.test))]
    sides = [{train.bursts[i] for i in part.tolist()} for part in places] + [set(test.bursts)]
    assert sum(map(len, sides)) == len(set.union(*sides)) >= 28


def test_only_folders_have_bursts(tmp_path):
    with pytest.raises(DataError, match="group = 'prefix' is for folder:PATH; leave it out with data=scenes"):
        load_dataset("scenes", "train", group="prefix")
    with pytest.raises(DataError, match="group must be none, prefix or folder, not 'x'"):
        load_dataset(f"folder:{tmp_path}", "train", group="x")
