"""A run's folder as values; an unfinished run is read as far as it has come."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig, load_run_config
from fedqssl.evaluation.controls import SHORT, best_control
from fedqssl.federated.algorithms import Algorithm, AlgorithmError, get_algorithm
from fedqssl.federated.protocol import protocol
from fedqssl.imported import one_line
from fedqssl.runs import RunError, RunResult
from fedqssl.runs.cells import read_result
from fedqssl.runs.find import find_runs


class ReportError(RunError):
    """A file of a run cannot be read, or the page cannot be written; the message says what to do."""


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

    def guess(self, name: str) -> float:
        """Accuracy on a client's test images of always guessing its most common training class."""
        train, test = self.train[name], self.test[name]
        total = sum(test)
        return test[max(range(len(train)), key=train.__getitem__)] / total if total and train else math.nan


def short_best(controls: Mapping[str, float]) -> tuple[str, float]:
    """The best control: its short name and its accuracy; NaN if none was measured."""
    name, value = best_control(controls or {"": math.nan})
    return SHORT.get(name, name), value


@dataclass(frozen=True)
class Client:
    """What is known about one client; an unknown figure is NaN, which the page shows as a dash."""

    name: str
    bits: int
    train: int
    test: int
    accuracy: float
    guess: float
    classes: float
    weight: float
    loss: float
    bytes_up: float
    bytes_down: float
    controls: Mapping[str, float]

    @property
    def best(self) -> tuple[str, float]:
        """The best control: its short name and its accuracy."""
        return short_best(self.controls)

    @property
    def untrained(self) -> float:
        """Accuracy of the untrained network in the client's bits."""
        return self.controls.get("untrained", math.nan)

    @property
    def error(self) -> float:
        """Standard error of the accuracy: large if there are few test images."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.test) if self.test else 0.0


@dataclass(frozen=True, eq=False)
class RunData:
    """Everything that a report shows about a run.

    Args:
        path: the run's folder.
        config: its settings.
        rounds: the lines of ``metrics.jsonl``, oldest first.
        result: ``result.json``; None while the run is active.
        environment: ``environment.json``.
        train: training images by client.
        test: held-out images by client.
        buffer: images of the server's buffer.
        image: (C, H, W), if the run recorded it.
        classes: number of classes, if the run recorded it.
        labels: by client; None if the data have no labels or these are unknown.
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
        """Digest of everything that affects accuracy, as recorded by the run or derived from the settings."""
        if self.result is not None:
            return self.result.protocol
        return "unknown" if self.algorithm is None else protocol(self.config)

    @property
    def done(self) -> int:
        """Rounds done."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @cached_property
    def algorithm(self) -> Algorithm | None:
        """The algorithm; None if it is no longer available, for example because its module was removed."""
        try:
            return get_algorithm(self.config.algorithm)
        except AlgorithmError:
            return None

    @property
    def title(self) -> str:
        """What the algorithm is called, or the name that the settings give it."""
        return self.config.algorithm if self.algorithm is None else self.algorithm.title

    @property
    def objective(self) -> str:
        """What clients train: the algorithm's own objective, or the configured one."""
        return (self.algorithm.objective if self.algorithm is not None else None) or self.config.objective

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
        accuracy = None if found is None else found.local_accuracy
        guess = self.labels.guess(name) if self.labels else math.nan
        guessed = {"commonest": guess} if math.isfinite(guess) else {}  # runs of older versions measured no controls
        return Client(
            name=name,
            bits=self.bits[name],
            train=self.train[name],
            test=self.test[name],
            accuracy=math.nan if accuracy is None else accuracy,
            guess=guess,
            classes=self.labels.effective_classes(name) if self.labels else math.nan,
            weight=self.last("weights", name),
            loss=self.last("client_loss", name),
            bytes_up=math.nan if found is None else found.bytes_up,
            bytes_down=math.nan if found is None else found.bytes_down,
            controls=guessed if found is None or found.controls is None else found.controls,
        )

    @property
    def controls(self) -> dict[str, Mapping[str, float]]:
        """Controls of the ``global`` and the mean ``local`` accuracy; empty where none were measured."""
        if self.result is None:
            return {"global": {}, "local": {}}
        return {"global": self.result.controls or {}, "local": self.result.local_controls()}

    @property
    def worst(self) -> float:
        """The lowest accuracy of a client; NaN if none is known."""
        return min((c.accuracy for c in self.clients if math.isfinite(c.accuracy)), default=math.nan)

    def last(self, *keys: str) -> float:
        """The newest value of :meth:`over_rounds`; NaN if there is none."""
        return next((value for _, value in reversed(self.over_rounds(*keys))), math.nan)

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


def runs_to_report(path: Path) -> list[Path]:
    """The run in this folder, or all runs below it, by name.

    Raises:
        RunError: if there is none.
    """
    found = [folder for folder in find_runs(path) if (folder / "partition.json").is_file()]
    if not found:
        raise ReportError(f"no run in {path} can be reported: partition.json is missing")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read ({error})") from error


def _rounds(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The complete lines of ``metrics.jsonl``; the last may be half-written."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("round"), int):
            found.append(_readable(value))
    return tuple(sorted(found, key=lambda line: line["round"]))


def _readable(line: dict[str, Any]) -> dict[str, Any]:
    """The line without values of unexpected types that another program may have written."""
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
        ValueError: if a file of the run cannot be read; one line that names it.
    """
    config = load_run_config(path)
    partition, data = _json(path / "partition.json"), _json(path / "data.json") or {}
    try:
        train = {str(n): _count(c["train"]) for n, c in partition["clients"].items()}
        test = {str(n): _count(c["test"]) for n, c in partition["clients"].items()}
        buffer = _count(partition["buffer"])
        labels = _labels(data) if data else _labels_from_images(config, partition)
        image = tuple(data["image"]) if "image" in data else None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ReportError(f"the description of the data in {path} cannot be read ({one_line(error)})") from error
    result = read_result(path) if (path / "result.json").is_file() else None
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


def _count(images: Any) -> int:
    """Number of images: a fleet records only the number, a simulation the images' positions."""
    return images if isinstance(images, int) else len(images)


def _labels_from_images(config: RunConfig, partition: Mapping[str, Any]) -> Labels | None:
    """For runs of older versions, which did not record labels: read the data again, if they are available."""
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


__all__ = ["Client", "Labels", "ReportError", "RunData", "read_run", "runs_to_report", "short_best"]
