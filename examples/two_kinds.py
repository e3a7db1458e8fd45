"""Two kinds of images for ``clusters=2``: half of the clients have photos, the others digits in colour or photos of another kind.

python examples/two_kinds.py CIFAR OUT [digits|night|negatives|turned [SEED]]

CIFAR is a folder with the files train-*.parquet of CIFAR-10 as Hugging Face has it. Writes OUT/train.npz and OUT/test.npz, to be
used as data=arrays:OUT with partition=natural. A client's name says its kind, which no run looks at. Every client has some
classes more often than others (Dirichlet, 0.5).
"""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = 10


def coloured_digits(draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 digits, each in a colour of its own on a ground of another one: (N, 3, 32, 32), labels (N,)."""
    digits = load_digits()
    ink = F.interpolate(torch.from_numpy(digits.images / 16)[:, None], size=(32, 32), mode="bilinear")  # (N, 1, 32, 32)
    front, ground = (draws.uniform(0, 255, (len(ink), 3, 1, 1)) for _ in range(2))
    pixels = ink.numpy() * front + (1 - ink.numpy()) * ground + draws.normal(0, 8, (len(ink), 3, 32, 32))
    return pixels.clip(0, 255).astype(np.uint8), digits.target.astype(np.int64)


def night(pixels: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Photos as a cheap camera takes them at night: a sixth of the light, and noise."""
    return (pixels / 6 + draws.normal(0, 4, pixels.shape)).clip(0, 255).astype(np.uint8)


CHANGES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "turned": lambda pixels, draws: np.rot90(pixels, axes=(2, 3)),
    "negatives": lambda pixels, draws: 255 - pixels,
    "night": night,
}
"""Kinds of photos by name: from photos (N, 3, 32, 32) to the same photos as they look there."""


def shares(labels: np.ndarray, clients: int, each: int, draws: np.random.Generator) -> list[np.ndarray]:
    """Indices of ``each`` images for every client, none twice, with the client's own mixture of classes."""
    left = {label: list(draws.permutation(np.flatnonzero(labels == label))) for label in np.unique(labels)}
    found = []
    for _ in range(clients):
        mixture, own = draws.dirichlet([0.5] * len(left)), []
        while len(own) < each:
            weights = np.array([p if left[label] else 0 for label, p in zip(left, mixture, strict=True)])
            if not weights.sum():
                weights = np.array([float(len(rest)) for rest in left.values()])
            own.append(left[draws.choice(list(left), p=weights / weights.sum())].pop())
        found.append(np.array(own))
    return found


def photos(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 from files train-*.parquet, as Hugging Face has it: images (N, 3, 32, 32), labels (N,)."""
    rows = [row for file in sorted(folder.glob("train-*.parquet")) for row in pq.read_table(file).to_pylist()]
    image = "img" if "img" in rows[0] else "image"
    pixels = [np.asarray(Image.open(io.BytesIO(row[image]["bytes"])).convert("RGB")) for row in rows]
    return np.stack(pixels).transpose(0, 3, 1, 2), np.array([row["label"] for row in rows], dtype=np.int64)


def main(
    cifar: Path, out: Path, other: str = "digits", seed: int = 0, clients: int = 10, images: int = 300, test: int = 200
) -> None:
    """Make the two files: so many images for each client, and ``test`` of each kind in the common test set."""
    draws = np.random.default_rng(seed)
    kinds = {"photos": photos(cifar)}
    kinds[other] = kinds["photos"] if other in CHANGES else coloured_digits(draws)
    splits: dict[str, dict[str, list[np.ndarray]]] = {
        split: {"images": [], "labels": [], "clients": []} for split in ("train", "test")
    }
    taken = np.empty(0, dtype=np.int64)
    for number, (kind, (pixels, labels)) in enumerate(kinds.items()):
        count = clients // 2 if kind == "photos" else clients - clients // 2
        free = np.setdiff1d(draws.permutation(len(pixels)), taken) if kind in CHANGES else np.arange(len(pixels))
        free = draws.permutation(free)
        common, rest = free[:test], free[test:]
        own = [rest[part] for part in shares(labels[rest], count, images, draws)]
        taken = np.concatenate([common, *own])  # no photo is of both kinds
        for split, parts in (("test", [common]), ("train", own)):
            for i, part in enumerate(parts):
                shown = CHANGES[kind](pixels[part], draws) if kind in CHANGES else pixels[part]
                splits[split]["images"].append(np.ascontiguousarray(shown))
                splits[split]["labels"].append(labels[part] + CLASSES * number)
                splits[split]["clients"].append(np.array([f"{kind}-{i:02d}"] * len(part), dtype=np.str_))
    out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        np.savez(out / f"{split}.npz", **{name: np.concatenate(parts) for name, parts in arrays.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4], *map(int, sys.argv[4:5]))
