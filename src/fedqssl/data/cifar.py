"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from the official archives, found on disk or downloaded once.

The binary version is preferred: it is bytes and needs no unpickling. The python version is read by an unpickler that builds
dicts, lists, numbers, byte strings and integer arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedqssl.data.fetch import DownloadProgress, cache_folder, download, unpack
from fedqssl.data.images import DataError, ImageSet
from fedqssl.data.pixels import line

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Archive:
    """Where an archive is published, and its checksums; only MD5 is published with it."""

    url: str
    md5: str
    sha256: str | None = None


@dataclass(frozen=True)
class Layout:
    """Names within the official folders of one data set."""

    title: str
    binary: str
    python: str
    files: dict[str, tuple[str, ...]]  # split -> file names, without .bin
    label_bytes: int
    label_key: bytes
    names_text: str
    names_pickle: tuple[str, bytes]
    archive: Archive


_URL = "https://www.cs.toronto.edu/~kriz"
LAYOUTS: dict[str, Layout] = {
    "cifar10": Layout(
        title="CIFAR-10",
        binary="cifar-10-batches-bin",
        python="cifar-10-batches-py",
        files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        label_bytes=1,
        label_key=b"labels",
        names_text="batches.meta.txt",
        names_pickle=("batches.meta", b"label_names"),
        archive=Archive(
            f"{_URL}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    "cifar100": Layout(
        title="CIFAR-100",
        binary="cifar-100-binary",
        python="cifar-100-python",
        files={"train": ("train",), "test": ("test",)},
        label_bytes=2,  # coarse, fine
        label_key=b"fine_labels",
        names_text="fine_label_names.txt",
        names_pickle=("meta", b"fine_label_names"),
        archive=Archive(
            f"{_URL}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
}


def read_cifar(
    name: str, split: str = "train", data_dir: Path | None = None, progress: DownloadProgress | None = None
) -> ImageSet:
    """Read one split of ``cifar10`` or ``cifar100`` (fine labels).

    The official folder is searched in ``data_dir`` and in the cache folder; if it is in neither, the archive is downloaded
    and unpacked there (``data_dir`` if it is given).

    Raises:
        DataError: the archive cannot be fetched, or a file is missing or damaged.
    """
    if name not in LAYOUTS:
        raise DataError(f"unknown CIFAR set '{name}'; use {' or '.join(LAYOUTS)}")
    layout = LAYOUTS[name]
    if split not in layout.files:
        raise DataError(f"{layout.title} has no split '{split}'; use train or test")
    folder = _find(layout, data_dir) or _fetch(layout, data_dir, progress)
    binary = (folder / f"{layout.files['test'][0]}.bin").is_file()
    read = _read_binary if binary else _read_python
    parts = [read(folder, file, layout) for file in layout.files[split]]
    pixels = np.concatenate([part[0] for part in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([part[1] for part in parts]).astype(np.int64)
    names = _names_binary(folder, layout) if binary else _names_python(folder, layout)
    return ImageSet(torch.from_numpy(pixels), torch.from_numpy(labels), names)


def on_disk(name: str, data_dir: Path | None = None) -> bool:
    """Whether :func:`read_cifar` would find this set without a download."""
    try:
        return _find(LAYOUTS[name], data_dir) is not None
    except DataError:
        return False


def _find(layout: Layout, data_dir: Path | None) -> Path | None:
    """The official folder: ``data_dir`` itself, or inside it or the cache folder; binary before python."""
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise DataError(f"{data_dir}: no such folder; create it, or leave out data_dir to use {cache_folder()}")
    places = [cache_folder()] if data_dir is None else [data_dir.expanduser(), cache_folder()]
    for place in places:
        for candidate in (place / layout.binary, place / layout.python):
            if candidate.is_dir():
                return candidate
        if place.name in (layout.binary, layout.python):
            return place
    return None


def _fetch(layout: Layout, data_dir: Path | None, progress: DownloadProgress | None) -> Path:
    place = cache_folder() if data_dir is None else data_dir.expanduser()
    target = place / layout.archive.url.rpartition("/")[2]
    archive = download(layout.archive.url, target, layout.archive.md5, progress, layout.archive.sha256)
    folder = unpack(archive, layout.binary, place)
    archive.unlink()
    return folder


def _bytes(folder: Path, file: str, layout: Layout) -> bytes:
    try:
        return (folder / file).read_bytes()
    except OSError as error:
        raise DataError(f"{folder / file}: cannot be read ({error.strerror}); fetch {layout.title} again") from error


Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]


def _read_binary(folder: Path, file: str, layout: Layout) -> Arrays:
    """Records of label bytes and 3072 pixel bytes; the last label byte is the fine one."""
    record = layout.label_bytes + _PIXELS
    data = np.frombuffer(_bytes(folder, f"{file}.bin", layout), dtype=np.uint8)
    if not len(data) or len(data) % record:
        raise DataError(f"{folder / file}.bin: {len(data)} bytes are not whole images; fetch {layout.title} again")
    rows = data.reshape(-1, record)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _read_python(folder: Path, file: str, layout: Layout) -> Arrays:
    """A pickled dict with ``data`` (N, 3072) uint8 and a list of labels."""
    data = safe_unpickle(_bytes(folder, file, layout), folder / file)
    array, labels = (data.get(b"data"), data.get(layout.label_key)) if isinstance(data, dict) else (None, None)
    pixels: npt.NDArray[Any] = array.values if isinstance(array, _Array) else np.empty(0)
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != _PIXELS
        or not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(type(label) is int and 0 <= label < 100 for label in labels)
    ):
        raise DataError(f"{folder / file}: not a {layout.title} batch; fetch it again")
    return pixels, np.array(labels, dtype=np.int64)


def _names_binary(folder: Path, layout: Layout) -> tuple[str, ...] | None:
    if not (folder / layout.names_text).is_file():
        return None
    text = _bytes(folder, layout.names_text, layout).decode("utf-8", "replace")
    return tuple(text.split()) or None


def _names_python(folder: Path, layout: Layout) -> tuple[str, ...] | None:
    file, key = layout.names_pickle
    if not (folder / file).is_file():
        return None
    data = safe_unpickle(_bytes(folder, file, layout), folder / file)
    names = data.get(key) if isinstance(data, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise DataError(f"{folder / file}: has no class names; fetch {layout.title} again")
    return tuple(name.decode("utf-8", "replace") for name in names) or None


def safe_unpickle(data: bytes, where: Path) -> Any:
    """Load a pickle of dicts, lists, numbers, byte strings and integer arrays (as ``.values``); refuse everything else.

    Raises:
        DataError: the pickle names anything else, or is damaged.
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{where}: damaged ({line(error)}); fetch it again") from error


class _Dtype:
    """Stand-in for ``numpy.dtype``: an integer type, and nothing with fields, objects or flags."""

    def __init__(self, code: object, *flags: object) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if text not in ("u1", "i1", "i4", "i8"):
            raise DataError(f"refused: an array of type {text!r}; use the official files")
        self.dtype = np.dtype(str(text))

    def __setstate__(self, state: Any) -> None:
        if any(part is not None for part in state[2:5]):
            raise DataError("refused: an array with fields; use the official files")
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stand-in for ``numpy.ndarray``: numpy's own state setters trust the file, so arrays are made from checked parts."""

    values: npt.NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Dtype) or not isinstance(raw, bytes):
            raise DataError("refused: an array of an unusual kind; use the official files")
        self.values = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    """An empty array, which the pickle then fills."""
    if kind is not _Array:
        raise DataError("refused: an array of an unusual kind; use the official files")
    return _Array()


def _encode(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise DataError("refused: text of an unusual encoding; use the official files")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Finds our own stand-ins for the five names that the files need, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in, or an error that names what was refused."""
        if (module, name) not in _ALLOWED:
            raise DataError(f"refused: the file would run {module}.{name}; use the official files")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to outside objects."""
        raise DataError("refused: the file refers to outside objects; use the official files")


__all__ = ["LAYOUTS", "on_disk", "read_cifar", "safe_unpickle"]
