import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.data.images import ImageSet
from fedqssl.data.partition import (
    MIN_TEST,
    MIN_TRAIN,
    PARTITIONS,
    build_partition,
    client_names,
    dirichlet,
    make_partition,
    natural,
)
from fedqssl.data.splits import Partition, PartitionError, label_counts


def image_set(count: int, classes: int | None = 10, groups: int | None = None) -> ImageSet:
    labels = None if classes is None else torch.arange(count) % classes
    names = None if groups is None else tuple(f"site {i // 3 % groups}" for i in range(count))
    return ImageSet(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), labels, None, names)


def check(partition: Partition, count: int) -> None:
    """Every image is in exactly one place, in order, and nobody has too few."""
    parts = [partition.buffer, *(t for c in partition.clients.values() for t in (c.train, c.test))]
    assert torch.cat(parts).sort().values.tolist() == list(range(count))
    assert all(part.dtype == torch.int64 and torch.equal(part, part.sort().values) for part in parts)
    assert all(len(c.train) >= MIN_TRAIN and len(c.test) >= MIN_TEST for c in partition.clients.values())


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(PARTITIONS)),
    count=st.integers(20, 600),
    classes=st.integers(1, 12),
    clients=st.integers(1, 12),
    beta=st.floats(0.05, 10),
    k=st.integers(1, 4),
    minority=st.floats(0, 0.9),
    ratio=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**32),
)
def test_disjoint_and_complete_or_a_reason(kind, count, classes, clients, beta, k, minority, ratio, seed):
    data = image_set(count, classes, clients)
    try:
        partition = build_partition(data, kind, None if kind == "natural" else clients, beta, k, minority, ratio, seed)
    except PartitionError as error:
        assert "\n" not in str(error)
        return
    check(partition, count)
    assert len(partition.clients) == (len(set(data.groups)) if kind == "natural" else clients)


@pytest.mark.parametrize("kind", list(PARTITIONS))
@pytest.mark.parametrize("seed", [0, 1])
def test_test_images_follow_the_client_s_own_distribution(kind, seed):
    data = image_set(3000, 10, 5)
    counts = label_counts(build_partition(data, kind, 5, beta=0.5, seed=seed), data.labels)
    for client in counts.values():
        train, test = np.array(client["train"]), np.array(client["test"])
        share = test.sum() / (train.sum() + test.sum())
        assert abs(share - 0.2) < 0.02 and (abs(test - share * (train + test)) <= 1).all()


@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_deterministic_in_the_seed(kind):
    data = image_set(2000, 10, 5)
    first, again, other = (build_partition(data, kind, 5, beta=0.5, seed=s).to_json() for s in (3, 3, 4))
    assert first == again and first["buffer"] != other["buffer"] and first["clients"] != other["clients"]


def test_the_buffer_does_not_look_at_labels():
    data = image_set(500)
    shuffled = ImageSet(data.images, data.labels[torch.randperm(500)])
    for kind in ("iid", "dirichlet", "classes"):
        a, b = (build_partition(d, kind, 5, beta=1.0, seed=1) for d in (data, shuffled))
        assert torch.equal(a.buffer, b.buffer) and len(a.buffer) == 50


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(c.train) + len(c.test) for c in build_partition(image_set(1003), "iid", 10).clients.values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("beta", [0.1, 0.5, 5.0])
def test_dirichlet_statistics(beta):
    """Shares of a class over K clients have mean 1/K and variance (K-1) / (K^2 (K beta + 1))."""
    k, classes, each = 5, 400, 500
    labels = np.repeat(np.arange(classes), each)
    parts = dirichlet(beta)(labels, k, np.random.default_rng(0))
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / each  # (K, classes)
    variance = (k - 1) / (k**2 * (k * beta + 1))
    assert abs(shares.mean(1) - 1 / k).max() < 4.5 * (variance / classes) ** 0.5
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_classes_per_client():
    data = image_set(2000)
    counts = label_counts(build_partition(data, "classes", 10, classes_per_client=3), data.labels)
    held = np.array([np.array(c["train"]) > 0 for c in counts.values()])
    assert (held.sum(1) == 3).all() and (held.sum(0) == 3).all()


def test_two_n_way_skew():
    data = image_set(5000)
    counts = label_counts(build_partition(data, "skew", 5, minority=0.1), data.labels)
    total = np.array([np.add(c["train"], c["test"]) for c in counts.values()])  # (clients, classes)
    for client, row in enumerate(total):
        own = [2 * client, 2 * client + 1]
        share = row / total.sum(0)
        assert share[own] == pytest.approx(0.9, abs=0.01)
        assert np.delete(share, own) == pytest.approx(0.1 / 4, abs=0.01)


def test_two_n_way_with_one_client_loses_nothing():
    check(build_partition(image_set(100, 2), "skew", 1, minority=0.5), 100)


def test_natural_clients_are_the_groups_by_name():
    data = image_set(700, None, 4)
    partition = build_partition(data, "natural")
    check(partition, 700)
    assert list(partition.clients) == sorted(set(data.groups))
    for name, split in partition.clients.items():
        assert {data.groups[i] for i in [*split.train.tolist(), *split.test.tolist()]} == {name}
    with pytest.raises(PartitionError, match=f"set clients={len(set(data.groups))}"):
        build_partition(data, "natural", 17)
    with pytest.raises(PartitionError, match="no natural groups"):
        build_partition(image_set(100), "natural")


def test_small_groups_are_named():
    groups = ("big",) * 100 + ("tiny",) * 5
    data = ImageSet(torch.zeros(105, 1, 1, 1, dtype=torch.uint8), groups=groups)
    with pytest.raises(PartitionError, match=r"1 of 2 groups .*'tiny' with [345]"):
        build_partition(data, "natural")


@pytest.mark.parametrize("name", ["", "..", "a/b", "..\\x", "a\nb", " x", "nul\0"])
def test_groups_that_cannot_be_folders(name):
    with pytest.raises(PartitionError, match="cannot be used as a folder name"):
        natural(["fine", name])


def test_labels_are_needed_only_where_they_are_used():
    data = image_set(300, None)
    check(build_partition(data, "iid", 5), 300)
    for kind in ("dirichlet", "classes", "skew"):
        with pytest.raises(PartitionError, match=r"needs labels, but .* use iid or natural"):
            build_partition(data, kind, 5)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_one_client(kind):
    check(build_partition(image_set(100), kind, 1), 100)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"clients": 0}, "at least 1 client"),
        ({"clients": None}, "set, for example, clients="),
        ({"clients": 501}, "use at most 45 clients"),
        ({"kind": "dirichlet", "beta": 0.0}, "beta must be a positive"),
        ({"kind": "dirichlet", "beta": -1.0}, "beta must be a positive"),
        ({"kind": "dirichlet", "beta": float("nan")}, "beta must be a positive"),
        ({"kind": "dirichlet", "beta": 0.001, "clients": 40}, "use a larger beta, fewer clients"),
        ({"kind": "classes", "classes_per_client": 0}, "at least 1"),
        ({"kind": "classes", "classes_per_client": 11}, "only 10 classes"),
        ({"kind": "classes", "classes_per_client": 1, "clients": 5}, "use at least 10 clients"),
        ({"kind": "skew", "minority": 1.0}, "minority"),
        ({"kind": "skew", "clients": 4}, "go with 5 clients"),
        ({"buffer_ratio": 0.0}, "buffer_ratio"),
        ({"buffer_ratio": 1.0}, "buffer_ratio"),
        ({"buffer_ratio": 0.001}, "larger ratio"),
        ({"seed": -1}, "seed"),
        ({"kind": "dirchlet"}, "did you mean 'dirichlet'"),
        ({"kind": "?"}, "choose from iid"),
    ],
)
def test_what_cannot_work_says_what_to_change(arguments, message):
    with pytest.raises(PartitionError, match=message) as caught:
        build_partition(image_set(500), **({"kind": "iid", "clients": 5} | arguments))
    assert "\n" not in str(caught.value)


def test_other_bad_arguments():
    assign = PARTITIONS["iid"].assign(1.0, 1, 0.0)
    with pytest.raises(PartitionError, match="holdout must be at least 0"):
        make_partition(100, None, assign, 2, 0.1, 0, holdout=1.0)
    with pytest.raises(PartitionError, match="labels must be"):
        make_partition(100, torch.zeros(99), assign, 2, 0.1, 0)
    greedy = make_partition(100, None, assign, 2, 0.1, 0, holdout=0.99)
    assert all(len(c.train) == MIN_TRAIN for c in greedy.clients.values())


@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_nothing_is_held_out_if_nothing_may_be(kind):
    data, clients = image_set(60, 10, 5), 5
    partition = build_partition(data, kind, clients, beta=5.0, buffer_ratio=0.2, holdout=0.0)
    parts = [partition.buffer, *(c.train for c in partition.clients.values())]
    assert torch.cat(parts).sort().values.tolist() == list(range(60))
    assert all(
        not len(c.test) and c.test.dtype == torch.int64 and len(c.train) >= MIN_TRAIN
        for c in partition.clients.values()
    )


def test_json_round_trip():
    partition = build_partition(image_set(300), "dirichlet", 4, beta=0.5)
    again = Partition.from_json(json.loads(json.dumps(partition.to_json())))
    assert again.to_json() == partition.to_json() and again.buffer.dtype == torch.int64
    assert list(again.clients) == list(partition.clients)
    empty = Partition.from_json({"buffer": [], "clients": {}})
    assert empty.buffer.dtype == torch.int64


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"buffer": [1], "clients": []},
        {"buffer": [0.5], "clients": {}},
        {"buffer": [1], "clients": {"a": {"train": [1]}}},
    ],
)
def test_what_is_not_a_partition(data):
    with pytest.raises(PartitionError, match="not a partition"):
        Partition.from_json(data)


def test_client_names_sort_like_numbers():
    assert client_names(2) == ["client-00", "client-01"]
    assert client_names(101)[-1] == "client-100" and sorted(client_names(101)) == client_names(101)


def test_splits_are_the_same_from_one_tensor_and_after_pickling():
    data = image_set(200)
    partition = build_partition(data, "iid", 7)
    again = pickle.loads(pickle.dumps(partition))
    assert list(again.clients) == list(partition.clients) and again.sizes() == partition.sizes()
    for name, split in partition.clients.items():
        assert torch.equal(split.train, again.clients[name].train) and torch.equal(split.test, again.clients[name].test)
        assert partition.sizes()[name] == len(split.train)
    with pytest.raises(KeyError):
        partition.clients["client-07"]
