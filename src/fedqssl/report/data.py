"""A run's folder as values; a run that is still going is read as far as it got."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig, load_config
from fedqssl.federated.protocol import protocol
from fedqssl.runs import RunResult


class ReportError(ValueError):
    """There is nothing to report on, or nowhere to write; the message says what to do."""


@dataclass(frozen=True)
class Labels:
    """Images of each class by client."""

    class_names: tuple[str, ...]
    train: Mapping[str, tuple[int, ...]]
    test: Mapping[str, tuple[int, ...]]

    def effective_classes(self, name: str) -> float:
        """``exp(H)`` of a client's training labels: 1 if all are of one class, K if K classes are equally common."""
        counts = [c for c in self.train[name] if c]
        total = sum(counts)
        return math.exp(-sum(c / total * math.log(c / total) for c in counts)) if total else 0.0

    def guess(self, name: str) -> float | None:
        """Accuracy on a client's test images of always naming its commonest training class."""
        train, test = self.train[name], self.test[name]
        total = sum(test)
        return test[max(range(len(train)), key=train.__getitem__)] / total if total and train else None


@dataclass(frozen=True)
class Client:
    """What is known of one client; what is not yet known is None."""

    name: str
    bits: int
    train: int
    test: int
    accuracy: float | None
    guess: float | None
    classes: float | None
    weight: float | None
    loss: float | None
    bytes_up: int | None
    bytes_down: int | None

    @property
    def error(self) -> float:
        """Standard error of the accuracy: few test images tell little."""
        if self.accuracy is None or not self.test:
            return 0.0
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.test)


@dataclass(frozen=True, eq=False)
class RunData:
    """Everything that a report says about a run.

    Args:
        path: the run's folder.
        config: its settings.
        rounds: the lines of ``metrics.jsonl``, oldest first.
        result: ``result.json``; None while the run is going.
        environment: ``environment.json``.
        train: training images by client.
        test: held-out images by client.
        buffer: images of the server's buffer.
        image: (C, H, W), if the run noted it.
        classes: number of classes, if the run noted it.
        labels: by client; None for data without labels, or where they are not known.
    """

    path: Path
    config: RunConfig
    rounds: tuple[Mapping[str, Any], ...]
    result: RunResult | None
    environment: Mapping[str, Any]
    train: Mapping[str, int]
    test: Mapping[str, int]
    buffer: int
    image: tuple[int, int, int] | None
    classes: int | None
    labels: Labels | None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.absolute().name

    @property
    def protocol(self) -> str:
        """Digest of everything that affects accuracy, as the run noted it or as it follows from the settings."""
        return self.result.protocol if self.result is not None else protocol(self.config)

    @property
    def done(self) -> int:
        """Rounds done."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def objective(self) -> str:
        """What clients train: the algorithm's own objective, or the configured one."""
        from fedqssl.federated.algorithms import ALGORITHMS

        known = ALGORITHMS.get(self.config.algorithm)
        return (known.objective if known is not None else None) or self.config.objective

    @property
    def bytes_moved(self) -> int:
        """Up and down: of the rounds so far, or of the whole run with the models handed out after the last round."""
        if self.result is not None:
            return self.result.bytes_up + self.result.bytes_down
        return sum(int(line.get("bytes_up", 0)) + int(line.get("bytes_down", 0)) for line in self.rounds)

    @cached_property
    def bits(self) -> dict[str, int]:
        """Bitwidth by client."""
        return self.config.bits_for(list(self.train))

    @cached_property
    def clients(self) -> tuple[Client, ...]:
        """All clients, by name."""
        return tuple(self._client(name) for name in sorted(self.train))

    def _client(self, name: str) -> Client:
        found = self.result.clients.get(name) if self.result is not None else None
        losses = [line["client_loss"][name] for line in self.rounds if name in line.get("client_loss", {})]
        weights = [line["weights"][name] for line in self.rounds if name in line.get("weights", {})]
        labels = self.labels
        return Client(
            name=name,
            bits=self.bits[name],
            train=self.train[name],
            test=self.test[name],
            accuracy=None if found is None else found.local_accuracy,
            guess=labels.guess(name) if labels else None,
            classes=labels.effective_classes(name) if labels else None,
            weight=weights[-1] if weights else None,
            loss=losses[-1][-1] if losses and losses[-1] else None,
            bytes_up=None if found is None else found.bytes_up,
            bytes_down=None if found is None else found.bytes_down,
        )

    def over_rounds(self, *keys: str) -> list[tuple[float, float]]:
        """``(round, value)`` of a figure, such as ``"collapse", "alignment"``, where it was measured."""
        found = []
        for line in self.rounds:
            value: Any = line
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, list):
                value = value[-1] if value else None
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.append((float(line["round"]), float(value)))
        return found


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return (path / "config.toml").is_file() and (path / "partition.json").is_file()


def find_runs(path: Path) -> list[Path]:
    """The run in this folder, or all runs below it, by name."""
    if not path.is_dir():
        hint = "is a file; give the run's folder" if path.exists() else "does not exist"
        raise ReportError(
            f"{path} {hint}; start a run with fedqssl run --out {path}" if not path.exists() else f"{path} {hint}"
        )
    if is_run(path):
        return [path]
    found = []
    for folder, below, _ in os.walk(path):
        if is_run(Path(folder)):
            found.append(Path(folder))
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
    if not found:
        raise ReportError(
            f"no run in {path}: a run's folder has config.toml and partition.json; start one with fedqssl run"
        )
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read ({error})") from error


def _rounds(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The whole lines of ``metrics.jsonl``; the last may be half-written."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("round"), int):
            found.append(_readable(value))
    return tuple(sorted(found, key=lambda line: line["round"]))


def _readable(line: dict[str, Any]) -> dict[str, Any]:
    """The line without what another program wrote into it that is not what we write."""
    wrong = {key for key in _BY_CLIENT if key in line and not isinstance(line[key], dict)}
    collapse = line.get("collapse")
    if isinstance(collapse, dict) and not all(isinstance(collapse.get(k), (int, float)) for k in _COLLAPSE):
        wrong.add("collapse")
    return {key: value for key, value in line.items() if key not in wrong}


_BY_CLIENT = ("client_loss", "dequantize_loss", "weights", "rejected")
_COLLAPSE = ("alignment", "uniformity", "effective_rank", "dim")


def read_run(path: Path) -> RunData:
    """Read a run's folder.

    Raises:
        ReportError: if a file of the run cannot be read.
    """
    config = load_config(path / "config.toml")
    partition, data = _json(path / "partition.json"), _json(path / "data.json") or {}
    try:
        train = {str(n): len(c["train"]) for n, c in partition["clients"].items()}
        test = {str(n): len(c["test"]) for n, c in partition["clients"].items()}
        buffer = len(partition["buffer"])
        labels = _labels(data) if data else _labels_from_images(config, partition)
        image = tuple(data["image"]) if "image" in data else None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ReportError(
            f"the description of the data in {path} cannot be read ({type(error).__name__}: {error})"
        ) from error
    result = RunResult.read(path) if (path / "result.json").is_file() else None
    rounds, noted = _rounds(path / "metrics.jsonl"), _json(path / "environment.json")
    environment = noted if isinstance(noted, dict) else {}
    classes = data.get("classes") or (len(labels.class_names) if labels else None)
    return RunData(path, config, rounds, result, environment, train, test, buffer, image, classes, labels)


def _labels(data: Mapping[str, Any]) -> Labels | None:
    counts = data["labels"]
    if counts is None:
        return None
    width = max((len(c["train"]) for c in counts.values()), default=0)
    names = tuple(map(str, data["class_names"] or ()))[:width]
    names += tuple(f"class {i}" for i in range(len(names), width))
    parts = ({n: tuple(map(int, c[part])) for n, c in counts.items()} for part in ("train", "test"))
    return Labels(names, *parts)


def _labels_from_images(config: RunConfig, partition: Mapping[str, Any]) -> Labels | None:
    """For runs of older versions, which did not note their labels: read the data again, if they are at hand."""
    from fedqssl.data.partition import Partition, label_counts
    from fedqssl.data.registry import load_dataset

    if config.data.startswith("cifar") and config.data_dir is None:
        return None  # could start a download
    try:
        train = load_dataset(config.data, "train", config.data_dir, config.on_bad, images=config.images)
        if train.labels is None:
            return None
        counts = label_counts(Partition.from_json(dict(partition)), train.labels)
    except (ValueError, OSError, IndexError):
        return None
    return _labels({"labels": counts, "class_names": train.class_names})


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return math.fsum(values) / len(values)


__all__ = ["Client", "Labels", "ReportError", "RunData", "find_runs", "is_run", "mean", "read_run"]
