"""Who holds which images, as indices: the server's buffer, and each client's training and test images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


class PartitionError(ValueError):
    """These images cannot be split as asked; the message says what to change."""


@dataclass(frozen=True, eq=False)
class ClientSplit:
    """Indices of one client's images."""

    train: Tensor
    test: Tensor


class Splits(Mapping[str, ClientSplit]):
    """Every client's split by name, in one tensor: ten thousand clients take no more room than their images' indices."""

    def __init__(self, splits: Mapping[str, ClientSplit]) -> None:
        parts = [part for split in splits.values() for part in (split.train, split.test)]
        self._flat = torch.cat([torch.empty(0, dtype=torch.int64), *parts])
        self._ends = np.cumsum([0, *map(len, parts)])
        self._rows = {name: row for row, name in enumerate(splits)}

    def __getitem__(self, name: str) -> ClientSplit:
        start, middle, end = self._ends[2 * self._rows[name] :][:3]
        return ClientSplit(self._flat[start:middle], self._flat[middle:end])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def sizes(self) -> dict[str, int]:
        """Number of training images by client."""
        return dict(zip(self._rows, (self._ends[1::2] - self._ends[:-1:2]).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices into one image set: the server's buffer, and each client's images by name."""

    buffer: Tensor
    clients: Mapping[str, ClientSplit]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Splits(self.clients))

    def sizes(self) -> dict[str, int]:
        """Number of training images by client."""
        assert isinstance(self.clients, Splits)
        return self.clients.sizes()

    def to_json(self) -> dict[str, object]:
        """Plain lists, for ``partition.json``."""
        clients = {n: {"train": c.train.tolist(), "test": c.test.tolist()} for n, c in self.clients.items()}
        return {"buffer": self.buffer.tolist(), "clients": clients}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Partition:
        """Inverse of :meth:`to_json`."""
        clients: Any = data.get("clients")
        try:
            splits = {str(n): ClientSplit(_indices(c["train"]), _indices(c["test"])) for n, c in clients.items()}
            return cls(_indices(data["buffer"]), splits)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PartitionError("not a partition; create it again from the run's config") from error


def _indices(values: Any) -> Tensor:
    """Positions as int64; anything but a flat list of whole numbers is an error."""
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise TypeError("positions must be a list of whole numbers")
    return torch.tensor(values, dtype=torch.int64)


def label_counts(partition: Partition, labels: Tensor) -> dict[str, dict[str, list[int]]]:
    """Training and test images of each class at every client: ``{client: {"train": [...], "test": [...]}}``."""
    classes = int(labels.max()) + 1
    return {
        name: {
            part: torch.bincount(labels[indices], minlength=classes).tolist()
            for part, indices in (("train", split.train), ("test", split.test))
        }
        for name, split in partition.clients.items()
    }


__all__ = ["ClientSplit", "Partition", "PartitionError", "Splits", "label_counts"]
