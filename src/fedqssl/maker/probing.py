"""Train a client's low-bit classifier on its frozen low-bit extractor, on its own data or on others, and judge it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedqssl.evaluation.local import LowBitClassifier, fit_lowbit_classifier
from fedqssl.evaluation.outcome import Outcome, outcome
from fedqssl.evaluation.probe import knn_probabilities
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.maker.finished_run import FinishedRun, Labeled, few

Method = Literal["linear", "knn"]


@dataclass(frozen=True)
class ProbeSettings:
    """What a probe is fitted on, and how.

    Args:
        data: ``folder:PATH`` or any data set, with labels of its own; None is the client's own split of the run.
        labels: share of the training labels: ``all``, ``10%``, ``1%``.
        method: ``linear`` (an s-bit classifier) or ``knn`` (needs no training).
    """

    data: str | None = None
    labels: str = "all"
    method: Method = "linear"

    def __post_init__(self) -> None:
        if self.method not in ("linear", "knn"):
            raise ValueError(f"method must be linear or knn, not {self.method!r}")
        if not 0 < self.share <= 1:
            raise ValueError(f"labels must be all, or a share like 10%, not {self.labels!r}")

    @property
    def share(self) -> float:
        """``labels`` as a number in (0, 1]."""
        if self.labels == "all":
            return 1.0
        try:
            return float(self.labels.removesuffix("%")) / 100 if self.labels.endswith("%") else 0.0
        except ValueError:
            return 0.0

    @property
    def plain(self) -> bool:
        """Whether it is the probe that a run ends with."""
        return self == ProbeSettings()

    def purpose(self) -> tuple[object, ...]:
        """What random draws derive from: the kind of data, not its path, so that a moved folder gives the same codes."""
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


@dataclass(frozen=True, eq=False)
class Probe:
    """A fitted classifier (none for kNN, nor for a model that ends in one) and how it did."""

    client: str
    bits: int
    settings: ProbeSettings
    class_names: tuple[str, ...]
    train_images: int
    train_counts: tuple[int, ...]
    outcome: Outcome
    classifier: LowBitClassifier | None

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
        """Write ``probe.json`` and, if matplotlib is there and ``draw`` is set, ``confusion.png`` (a third of a second)."""
        from fedqssl.maker.drawing import draw_probe
        from fedqssl.runs.folder import write_atomically

        tag = self.settings.tag()
        path = folder / f"probe{tag}.json"
        write_atomically(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())
        return [path, *(draw_probe(self, folder / f"confusion{tag}.png") if draw else ())]


def probe_client(run: FinishedRun, name: str, settings: ProbeSettings | None = None) -> Probe:
    """Fit and judge one client's classifier; the same call gives the same codes."""
    settings = settings or ProbeSettings()
    bits = run.result.clients[run.client(name)].bits
    data = run.own(name) if settings.data is None else run.other(settings.data)
    features = run.features(name, (data.train, data.test))
    if run.context.task.supervised:
        return _as_it_is(run, name, data, settings, features)
    purpose = settings.purpose()
    kept = few(data.train_labels, settings.share, generator(run.config.seed, "few labels", name, *purpose))
    x, y = features[0][kept], data.train_labels[kept]
    classes = len(data.class_names)
    classifier = None
    if settings.method == "knn":
        shares = knn_probabilities(x, y, features[1], classes)
    else:
        seed = derived_seed(run.config.seed, "local probe", name, *purpose)
        classifier = fit_lowbit_classifier(x, y, classes, bits, seed=seed)
        shares = classifier.logits(features[1]).softmax(1)
    counts = tuple(y.bincount(minlength=classes).tolist())
    judged = outcome(shares, data.test_labels)
    return Probe(name, bits, settings, data.class_names, len(y), counts, judged, classifier)


def _as_it_is(run: FinishedRun, name: str, data: Labeled, settings: ProbeSettings, logits: Any) -> Probe:
    """A supervised model has its classifier already: it is judged as it lies in the run."""
    if not settings.plain:
        raise ValueError(f"{run.config.algorithm} trained its own classifier; leave out --data, --labels and --method")
    counts = tuple(data.train_labels.bincount(minlength=len(data.class_names)).tolist())
    judged = outcome(logits[1].softmax(1), data.test_labels)
    bits = run.result.clients[name].bits
    return Probe(name, bits, settings, data.class_names, sum(counts), counts, judged, None)


__all__ = ["Method", "Probe", "ProbeSettings", "probe_client"]
