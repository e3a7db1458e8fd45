"""A run's folder as values; an unfinished run is read as far as it has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig, load_run_config
from fedqssl.evaluation.controls import SHORT, best_control
from fedqssl.federated.algorithms import Algorithm, AlgorithmError, get_algorithm
from fedqssl.federated.protocol import protocol
from fedqssl.files import read_json
from fedqssl.imported import nearest, one_line
from fedqssl.reporting.described import Described, Splits, count
from fedqssl.runs import RunError, RunResult
from fedqssl.runs.cells import read_result
from fedqssl.runs.checksums import check_sum
from fedqssl.runs.find import find_runs
from fedqssl.runs.metrics import readable_line
from fedqssl.runs.result import MANY


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


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share of ``count`` images, one standard error wide (z = 1); not empty for 0% and 100%.

    ``(p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)``; NaN without images.
    """
    if not count or not math.isfinite(share):
        return math.nan, math.nan
    centre, half = share + 1 / (2 * count), math.sqrt(share * (1 - share) / count + 1 / (4 * count * count))
    return max((centre - half) / (1 + 1 / count), 0.0), min((centre + half) / (1 + 1 / count), 1.0)


SHOWN = 60
"""Clients of a large fleet that charts and tables show."""


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
    def interval(self) -> tuple[float, float]:
        """Where the accuracy probably lies: wide if there are few test images."""
        return wilson(self.accuracy, self.test)


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
        trust: whether code that the settings name may be imported.
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
    trust: bool = False

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
        """The algorithm; None if it is code that is not trusted, or no longer available (its module was removed)."""
        if ":" in self.config.algorithm and not self.trust:
            return None
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

    @property
    def many(self) -> bool:
        """Whether there are too many clients for a row each."""
        return len(self.train) > MANY

    @cached_property
    def clients(self) -> tuple[Client, ...]:
        """All clients, by name; of a large fleet some, evenly spaced from the lowest to the highest accuracy."""
        names, result = sorted(self.train), self.result
        if self.many:
            known = {} if result is None else {n: c.local_accuracy for n, c in result.clients.items()}
            measured = sorted((a, n) for n, a in known.items() if a is not None and n in self.train)
            ranked = [name for _, name in measured] or names
            last, shown = len(ranked) - 1, min(SHOWN, len(ranked))
            names = sorted({ranked[round(i * last / max(shown - 1, 1))] for i in range(shown)})
        return tuple(map(self.client, names))

    def client(self, name: str) -> Client:
        """One client.

        Raises:
            ReportError: there is none of this name; suggests the nearest.
        """
        if name not in self.train:
            raise ReportError(f"{self.path} has no client {name!r}{nearest(name, self.train)}")
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
    return read_json(path, ReportError) if path.exists() else None


def _rounds(path: Path, finished: bool) -> tuple[Mapping[str, Any], ...]:
    """The complete lines of ``metrics.jsonl``; the last may be half-written."""
    data = path.read_bytes() if path.is_file() else b""
    if finished:
        check_sum(path.parent, path.name, data)
    found = []
    for line in data.decode("utf-8", "replace").split("\n"):
        with suppress(ValueError):
            found.append(readable_line(line))
    return tuple(sorted(found, key=lambda line: int(line["round"])))


def read_run(path: Path, trust: bool = False) -> RunData:
    """Read a run's folder; ``trust``: code that its settings name may be imported.

    Raises:
        ValueError: if a file of the run cannot be read; one line that names it.
    """
    config = load_run_config(path)
    noted = _json(path / "partition.json"), _json(path / "data.json")
    try:
        partition, data = Splits.model_validate(noted[0]), Described.model_validate(noted[1] or {})
        if data.labels is not None and data.labels.keys() != partition.clients.keys():
            raise ValueError("data.json is not about the clients of partition.json")
    except ValueError as error:
        raise ReportError(f"the description of the data in {path} cannot be read ({one_line(error)})") from error
    train, test = ({n: count(getattr(c, part)) for n, c in partition.clients.items()} for part in ("train", "test"))
    labels = _labels(data) if noted[1] else _labels_from_images(config, noted[0])
    result = read_result(path) if (path / "result.json").is_file() else None
    rounds, environment = _rounds(path / "metrics.jsonl", result is not None), _json(path / "environment.json")
    known = environment if isinstance(environment, dict) else {}
    classes = data.classes or (len(labels.class_names) if labels else None)
    about = count(partition.buffer), data.image, classes, labels, trust
    return RunData(path, config, rounds, result, known, train, test, *about)


def _labels(data: Described) -> Labels | None:
    counts = data.labels
    if counts is None:
        return None
    width = max((len(c.train) for c in counts.values()), default=0)
    names = tuple(data.class_names or ())[:width]
    names += tuple(f"class {i}" for i in range(len(names), width))
    rows = {name: (_filled(c.train, width), _filled(c.test, width)) for name, c in counts.items()}
    return Labels(names, {n: row[0] for n, row in rows.items()}, {n: row[1] for n, row in rows.items()})


def _filled(row: list[int], width: int) -> tuple[int, ...]:
    """A row of counts of this width."""
    return tuple(row[:width]) + (0,) * (width - len(row))


def _labels_from_images(config: RunConfig, partition: Mapping[str, Any]) -> Labels | None:
    """For runs of older versions, which did not record labels: read the data again, if they are available."""
    from fedqssl.data.registry import load_dataset
    from fedqssl.data.splits import Partition, label_counts

    if config.data.startswith("cifar") and config.data_dir is None:
        return None  # could start a download
    try:
        train = load_dataset(config.data, "train", config.data_dir, config.on_bad, images=config.images)
        if train.labels is None:
            return None
        counts = label_counts(Partition.from_json(dict(partition)), train.labels)
    except (ValueError, OSError, IndexError):
        return None
    names = None if train.class_names is None else list(train.class_names)
    return _labels(Described.model_validate({"labels": counts, "class_names": names}))


__all__ = ["Client", "Labels", "ReportError", "RunData", "read_run", "runs_to_report", "short_best", "wilson"]
