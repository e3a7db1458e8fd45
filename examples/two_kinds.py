"""Two kinds of images for ``clusters=2``: half of the clients have photos, the others digits in colour or turned photos.

python examples/two_kinds.py OUT [--other digits|turned] [--clients 10] [--images 300] [--seed 0] [--photos parquet:PATH]

Writes OUT/train.npz and OUT/test.npz, to be used as data=arrays:OUT with partition=natural. A client's name says its kind, which
no run looks at. Every client has some classes more often than others (Dirichlet, 0.5).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from fedqssl.data.registry import load_dataset

CLASSES = 10


def coloured_digits(draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 digits, each in a colour of its own on a ground of another one: (N, 3, 32, 32), labels (N,)."""
    digits = load_digits()
    ink = F.interpolate(torch.from_numpy(digits.images / 16)[:, None], size=(32, 32), mode="bilinear")  # (N, 1, 32, 32)
    front, ground = (draws.uniform(0, 255, (len(ink), 3, 1, 1)) for _ in range(2))
    pixels = ink.numpy() * front + (1 - ink.numpy()) * ground + draws.normal(0, 8, (len(ink), 3, 32, 32))
    return pixels.clip(0, 255).astype(np.uint8), digits.target.astype(np.int64)


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


def main() -> None:
    """Make the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--other", choices=["digits", "turned"], default="digits")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=300, help="of each client")
    parser.add_argument("--test", type=int, default=200, help="images of each kind in the common test set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--photos", default="cifar10", help="data of the photos, as for the setting data")
    asked = parser.parse_args()
    draws = np.random.default_rng(asked.seed)
    photos = load_dataset(asked.photos, "train", None, "error", 32)
    assert photos.labels is not None
    half = asked.clients // 2
    kinds = {"photos": (photos.images.numpy(), photos.labels.numpy(), half)}
    if asked.other == "digits":
        kinds["digits"] = (*coloured_digits(draws), asked.clients - half)
    else:
        kinds["turned"] = (*kinds["photos"][:2], asked.clients - half)
    splits: dict[str, dict[str, list[np.ndarray]]] = {
        s: {"images": [], "labels": [], "clients": []} for s in ("train", "test")
    }
    taken = np.empty(0, dtype=np.int64)
    for number, (kind, (images, labels, clients)) in enumerate(kinds.items()):
        free = np.setdiff1d(draws.permutation(len(images)), taken) if kind == "turned" else np.arange(len(images))
        free = draws.permutation(free)
        test, rest = free[: asked.test], free[asked.test :]
        own = [rest[part] for part in shares(labels[rest], clients, asked.images, draws)]
        if kind == "photos":
            taken = np.concatenate([test, *own])
        for split, parts in (("test", [test]), ("train", own)):
            for i, part in enumerate(parts):
                pixels = images[part] if kind != "turned" else np.rot90(images[part], axes=(2, 3))
                splits[split]["images"].append(np.ascontiguousarray(pixels))
                splits[split]["labels"].append(labels[part] + (CLASSES if number else 0))
                splits[split]["clients"].append(np.array([f"{kind}-{i:02d}"] * len(part), dtype=np.str_))
    asked.out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        np.savez(asked.out / f"{split}.npz", **{name: np.concatenate(parts) for name, parts in arrays.items()})


if __name__ == "__main__":
    main()
