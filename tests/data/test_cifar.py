import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedqssl.data import cifar
from fedqssl.data.cifar import LAYOUTS, Archive, read_cifar, safe_unpickle
from fedqssl.data.images import DataError

NAMES = {"cifar10": [f"c{i}" for i in range(10)], "cifar100": [f"f{i}" for i in range(100)]}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDQSSL_CACHE", str(tmp_path / "cache"))


def content(name: str) -> dict[str, tuple[np.ndarray, list[int]]]:
    """File -> pixels (3, 3072) and labels, the same for both versions."""
    rng = np.random.default_rng(0)
    files = [file for split in LAYOUTS[name].files.values() for file in split]
    top = len(NAMES[name])
    return {f: (rng.integers(0, 256, (3, 3072), dtype=np.uint8), rng.integers(0, top, 3).tolist()) for f in files}


def write_binary(root: Path, name: str) -> Path:
    folder = root / LAYOUTS[name].binary
    folder.mkdir(parents=True)
    for file, (pixels, labels) in content(name).items():
        head = [[7] * (name == "cifar100") + [label] for label in labels]
        (folder / f"{file}.bin").write_bytes(np.hstack([np.array(head, np.uint8), pixels]).tobytes())
    (folder / LAYOUTS[name].names_text).write_text("\n".join(NAMES[name]) + "\n\n")
    return folder


def write_python(root: Path, name: str) -> Path:
    layout = LAYOUTS[name]
    folder = root / layout.python
    folder.mkdir(parents=True)
    for file, (pixels, labels) in content(name).items():
        (folder / file).write_bytes(pickle.dumps({b"data": pixels, layout.label_key: labels}, 2))
    file, key = layout.names_pickle
    (folder / file).write_bytes(pickle.dumps({key: [n.encode() for n in NAMES[name]]}, 2))
    return folder


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("inside", [False, True])
def test_official_folders(tmp_path, name, write, inside):
    folder = write(tmp_path / "data", name)
    for split, files in LAYOUTS[name].files.items():
        data = read_cifar(name, split, folder if inside else tmp_path / "data")
        expected = [content(name)[file] for file in files]
        assert torch.equal(data.images.flatten(1), torch.from_numpy(np.concatenate([e[0] for e in expected])))
        assert data.labels.tolist() == [label for e in expected for label in e[1]]
        assert data.class_names == tuple(NAMES[name])


def test_python_2_pickle():
    """The official files are protocol 2 of Python 2, where byte strings are str: opcodes U and T."""
    raw = bytes(range(6))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T\x06\x00\x00\x00" + raw + b"tb"
    )
    data = safe_unpickle(b"\x80\x02}U\x04data" + array + b"s.", Path("x"))
    assert data[b"data"].values.tolist() == [[0, 1, 2], [3, 4, 5]]


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/fedqssl-was-here",)


@pytest.mark.parametrize(
    "bad",
    [
        pickle.dumps(Evil(), 2),
        pickle.dumps({b"data": Evil()}, 4),
        b"cbuiltins\neval\n(V1+1\ntR.",
        b"cnumpy\nload\n(V/etc/passwd\ntR.",
        b"cnumpy\nndarray.__class__\n.",
        pickle.dumps(np.array([Evil()], dtype=object), 2),
        pickle.dumps(np.zeros(2, dtype=[("a", "u1")]), 2),
        pickle.dumps(np.zeros(2), 2),
        pickle.dumps(Path("x"), 2),
        b"Pid\n.",
        b"c_codecs\nencode\n(Vx\nVzip\ntR.",
    ],
)
def test_malicious_pickles_are_refused(bad, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(DataError, match="x: refused: ") as caught:
        safe_unpickle(bad, Path("x"))
    assert ran == [] and "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [b"", b"garbage", pickle.dumps({b"data": np.zeros(9, np.uint8)}, 2)[:-20]])
def test_damaged_pickles(bad):
    with pytest.raises(DataError, match="x: damaged"):
        safe_unpickle(bad, Path("x"))


@pytest.mark.parametrize(
    "batch",
    [
        [1],
        {b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [0]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [b"x"]},
        {b"data": np.zeros((1, 3072), np.int64), b"labels": [0]},
    ],
)
def test_a_pickle_of_something_else(tmp_path, batch):
    (write_python(tmp_path, "cifar10") / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(DataError, match="not a CIFAR-10 batch"):
        read_cifar("cifar10", "test", tmp_path)


def test_bad_folders(tmp_path):
    folder = write_binary(tmp_path, "cifar10")
    with pytest.raises(DataError, match="no such folder"):
        read_cifar("cifar10", "train", tmp_path / "nowhere")
    with pytest.raises(DataError, match="no split 'val'"):
        read_cifar("cifar10", "val", tmp_path)
    with pytest.raises(DataError, match="cifar10 or cifar100"):
        read_cifar("cifar", "train", tmp_path)
    file = folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin: 9218 bytes are not whole images"):
        read_cifar("cifar10", "train", tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin: cannot be read"):
        read_cifar("cifar10", "train", tmp_path)
    (folder / "batches.meta.txt").unlink()
    assert read_cifar("cifar10", "test", tmp_path).class_names is None


@pytest.mark.parametrize("given", [True, False])
def test_downloaded_once_and_resumed(server, tmp_path, monkeypatch, given):
    write_binary(tmp_path / "source", "cifar10")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    server.body, server.cuts = packed.getvalue(), [5000]
    archive = Archive(server.url, hashlib.md5(server.body).hexdigest())
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", replace(LAYOUTS["cifar10"], archive=archive))
    place = tmp_path / ("mine" if given else "cache")
    if given:
        place.mkdir()
    seen: list[int] = []
    data = read_cifar("cifar10", "test", place if given else None, lambda done, total: seen.append(done))
    assert data.labels.tolist() == content("cifar10")["test_batch"][1] and seen[-1] == len(server.body)
    assert len(read_cifar("cifar10", "train", place if given else None)) == 15
    assert server.requests == [None, "bytes=5000-"]
    assert [p.name for p in place.iterdir()] == ["cifar-10-batches-bin"]


def test_published_checksums():
    assert LAYOUTS["cifar10"].archive.md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert LAYOUTS["cifar100"].archive.md5 == "03b5dce01913d631647c71ecec9e9cb8"
    known = [LAYOUTS[name].archive.sha256 for name in ("cifar10", "cifar100")]
    assert [(digest or "")[:8] for digest in known] == ["c4a38c50", "58a81ae1"] and all(
        len(d or "") == 64 for d in known
    )
