"""Train a client's low-bit classifier on its frozen low-bit extractor, on its own data or other data, and evaluate it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedqssl.evaluation.classifier import fit_classifier
from fedqssl.evaluation.controls import measure_controls
from fedqssl.evaluation.local import LowBitClassifier
from fedqssl.evaluation.outcome import Outcome, outcome
from fedqssl.evaluation.probe import knn_probabilities
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import Task
from fedqssl.files import write_json
from fedqssl.maker.finished_run import FinishedRun, LabeledSplit, few

ProbeMethod = Literal["linear", "knn"]


@dataclass(frozen=True)
class ProbeSettings:
    """What a probe is fitted on, and how.

    Args:
        data: ``folder:PATH`` or any data set, with its own labels; None is the client's own split of the run.
        labels: share of the training labels: ``all``, ``10%``, ``1%``.
        method: ``linear`` (an s-bit classifier) or ``knn`` (needs no training).
    """

    data: str | None = None
    labels: str = "all"
    method: ProbeMethod = "linear"

    def __post_init__(self) -> None:
        if self.method not in ("linear", "knn"):
            raise ValueError(f"method must be linear or knn, not {self.method!r}")
        if not 0 < self.share <= 1:
            raise ValueError(f"labels must be all, or a share like 10%, not {self.labels!r}")

    @property
    def share(self) -> float:
        """``labels`` as a number in (0, 1]."""
        percent = re.fullmatch(r"([\d.]+)%", self.labels)
        return float(percent[1]) / 100 if percent else float(self.labels == "all")

    @property
    def plain(self) -> bool:
        """Whether these are the settings of the run's final evaluation."""
        return self == ProbeSettings()

    def purpose(self) -> tuple[object, ...]:
        """What random draws are derived from: the kind of data, not its path, so that a moved folder gives the same codes."""
        if self.data is None and self.labels == "all":
            return ()
        kind = None if self.data is None else self.data.partition(":")[0]
        return kind, self.labels

    def tag(self) -> str:
        """A short name for files: empty for the plain probe."""
        if self.plain:
            return ""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"-{self.method}-{self.labels.replace('%', 'pct')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """A fitted classifier (none for kNN, nor for a model that ends in one) and its accuracy; ``kept`` are the images it saw."""

    client: str
    bits: int
    settings: ProbeSettings
    class_names: tuple[str, ...]
    train_images: int
    train_counts: tuple[int, ...]
    outcome: Outcome
    classifier: LowBitClassifier | None
    kept: Tensor

    def __repr__(self) -> str:
        known, tested = self.outcome.accuracy, self.outcome.images
        found = "no test images" if known is None else f"{known:.1%} of {tested} test images"
        return f"<Probe of {self.client}: {self.bits} bits, {found}, {self.train_images} labels>"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "client": self.client,
            "bits": self.bits,
            **asdict(self.settings),
            "class_names": list(self.class_names),
            "train_images": self.train_images,
            "train_counts": list(self.train_counts),
            **self.outcome.to_json(),
        }

    def write(self, folder: Path, draw: bool = True) -> list[Path]:
        """Write ``probe.json`` and, if matplotlib is installed and ``draw`` is set, ``confusion.png`` (a third of a second)."""
        from fedqssl.maker.drawing import draw_probe

        tag = self.settings.tag()
        path = folder / f"probe{tag}.json"
        write_json(path, self.to_json())
        return [path, *(draw_probe(self, folder / f"confusion{tag}.png") if draw else ())]


def probe_client(run: FinishedRun, name: str, settings: ProbeSettings | None = None) -> Probe:
    """Fit and evaluate the classifier of a client of a finished run; the same call gives the same codes."""
    settings, task = settings or ProbeSettings(), run.context.task
    if task.supervised and not settings.plain:
        raise ValueError(f"{run.config.algorithm} trained its own classifier; leave out --data, --labels and --method")
    bits = run.result.clients[run.client(name)].bits
    data = run.labeled(name, settings.data)
    return fit_probe(task, name, bits, data, run.features(name, data.parts(task)), settings)


def probe_controls(probe: Probe, data: LabeledSplit) -> Mapping[str, float]:
    """What simple classifiers make of the same images and labels; nothing without test images."""
    if not len(data.test):
        return {}
    train, test = (data.train[probe.kept], data.train_labels[probe.kept]), (data.test, data.test_labels)
    return measure_controls(*train, *test, len(data.class_names)).to_json()


def fit_probe(
    task: Task,
    name: str,
    bits: int,
    data: LabeledSplit,
    features: Sequence[Tensor],
    settings: ProbeSettings | None = None,
) -> Probe:
    """Fit and evaluate a classifier on features of a client's frozen model.

    Args:
        task: what the model was trained for; the outputs of a supervised model are evaluated directly.
        name: the client's name; with the task's seed, it determines all draws.
        bits: of the client.
        data: images with labels.
        features: of ``data.parts(task)``.
        settings: how to fit, and on which share of the labels.
    """
    settings = settings or ProbeSettings()
    labels, asked, classifier = data.train_labels, features[-1] if len(data.test) else None, None
    classes, purpose = len(data.class_names), settings.purpose()
    kept = few(labels, settings.share, generator(task.seed, "few labels", name, *purpose))
    shares = torch.empty(0, classes)
    if task.supervised:
        shares = shares if asked is None else asked.softmax(1)
    else:
        known, labels = features[0][kept], labels[kept]
        if settings.method == "linear":
            seed = derived_seed(task.seed, "local probe", name, *purpose)
            classifier = fit_classifier(task.classifier, known, labels, classes, bits, seed, task.levels())
        if asked is not None and classifier is not None:
            shares = classifier.logits(asked).softmax(1)
        elif asked is not None:
            shares = knn_probabilities(known, labels, asked, classes)
    counts = tuple(labels.bincount(minlength=classes).tolist())
    judged = outcome(shares, data.test_labels)
    return Probe(name, bits, settings, data.class_names, len(labels), counts, judged, classifier, kept)


__all__ = ["Probe", "ProbeMethod", "ProbeSettings", "fit_probe", "probe_client", "probe_controls"]
