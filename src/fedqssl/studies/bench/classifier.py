"""Is a device's classifier as good as its bits allow? On the features of finished runs, beside scikit-learn, kNN and class means.

Every client of a run has features in its own bits. Our classifier in the same bits and scikit-learn's ``LogisticRegressionCV``
in floats (features standardised, weight decay by cross-validation) get the same labels and are tested on the same images: the
run's own split first, then random splits of the client's images of the same sizes, because held-out sets are small. With 1 to 5
labels a class the peers are kNN and the nearest class mean, and all other images of the client are tested.
"""

from __future__ import annotations

import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedqssl.evaluation import knn_accuracy
from fedqssl.evaluation.classifier import Levels, fit_device_classifier
from fedqssl.evaluation.features import extract_features
from fedqssl.federated.randomness import generator
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.studies.bench.records import Record, Row, import_peer

Say = Callable[[str], None]
LEAST_LABELS = 50
"""Clients with fewer training labels are left out: no split of theirs says anything."""
SHOTS = (1, 2, 3, 4, 5)
LEAST_IN_CLASS = 10
"""Classes with fewer images take no part in draws of a few labels: some must be left to be tested."""
REGRESSION, NEIGHBOURS, MEANS = "LogisticRegressionCV", "kNN", "class means"


@dataclass(frozen=True, eq=False)
class ClientFeatures:
    """Features (N, d) and labels (N,) of a client's images, the ``train`` training images of its run first."""

    run: str
    client: str
    bits: int
    x: Tensor
    y: Tensor
    train: int
    classes: int
    levels: Levels = None


@dataclass(frozen=True)
class Comparison:
    """One client's accuracies in percent, means over draws; ``shots`` labels a class, or all of them if None."""

    run: str
    client: str
    bits: int
    labels: int
    tested: int
    shots: int | None
    peer: str
    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        """Points that ours is ahead."""
        return self.ours - self.theirs


def clients_of(path: Path) -> Iterator[ClientFeatures]:
    """The features of every client of a finished run that has enough labels; nothing is written to its folder."""
    run = FinishedRun.open(path)
    for name, client in run.result.clients.items():
        split = run.own(name)
        if len(split.train_labels) >= LEAST_LABELS and len(split.test_labels):
            x = extract_features(run.extractor(name), torch.cat([split.train, split.test]))
            y = torch.cat([split.train_labels, split.test_labels])
            task = run.context.task
            yield ClientFeatures(path.name, name, client.bits, x, y, len(split.train), task.classes, task.levels())


def regression_accuracy(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    """Test accuracy of scikit-learn's ``LogisticRegressionCV`` on standardised features, five folds, ten decays.

    Raises:
        PeerUnavailableError: scikit-learn is not installed.
    """
    hint = "install it with: pip install 'fedqssl[data]'"
    linear, scaling = (import_peer(f"sklearn.{name}", hint) for name in ("linear_model", "preprocessing"))
    if bool((y == y[0]).all()):
        return float((test_y == y[0]).double().mean())
    scaler = scaling.StandardScaler().fit(x.double().numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with fewer labels than folds, and of defaults that will change
        fitted = linear.LogisticRegressionCV(Cs=10, cv=5, max_iter=1000)
        fitted.fit(scaler.transform(x.double().numpy()), y.numpy())
        answers = fitted.predict(scaler.transform(test_x.double().numpy()))
    return float((torch.from_numpy(answers) == test_y).double().mean())


def means_accuracy(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    """Test accuracy of the nearest class mean."""
    classes: Tensor = torch.unique(y)
    means = torch.stack([x[y == c].mean(0) for c in classes])
    return float((classes[torch.cdist(test_x, means).argmin(1)] == test_y).double().mean())


def with_all_labels(of: ClientFeatures, splits: int) -> Comparison:
    """Ours beside scikit-learn's, on the run's own split and on ``splits - 1`` random ones."""
    ours, theirs = [], []
    for number in range(splits):
        order = torch.arange(len(of.y)) if number == 0 else _shuffled(of, "split", number)
        kept, rest = order[: of.train], order[of.train :]
        parts = of.x[kept], of.y[kept], of.x[rest], of.y[rest]
        ours.append(_ours(of, *parts))
        theirs.append(regression_accuracy(*parts))
    return _compared(of, of.train, len(of.y) - of.train, None, REGRESSION, ours, theirs)


def with_few_labels(of: ClientFeatures, shots: int, draws: int) -> list[Comparison]:
    """Ours beside kNN and class means with so many labels of each class, drawn several times; all other images are tested."""
    found = defaultdict[str, list[float]](list)
    large = (of.y.bincount(minlength=of.classes) >= LEAST_IN_CLASS).nonzero().flatten()
    if len(large) < 2:
        return []
    labels = tested = 0
    for number in range(draws):
        order = _shuffled(of, "few", shots, number)
        members = [order[of.y[order] == c] for c in large]
        kept, rest = (torch.cat(part) for part in zip(*((m[:shots], m[shots:]) for m in members), strict=True))
        parts = of.x[kept], of.y[kept], of.x[rest], of.y[rest]
        labels, tested = len(kept), len(rest)
        found["ours"].append(_ours(of, *parts))
        found[NEIGHBOURS].append(knn_accuracy(*parts, k=min(20, len(kept))))
        found[MEANS].append(means_accuracy(*parts))
    return [_compared(of, labels, tested, shots, peer, found["ours"], found[peer]) for peer in (NEIGHBOURS, MEANS)]


def _shuffled(of: ClientFeatures, *purpose: object) -> Tensor:
    return torch.randperm(len(of.y), generator=generator(0, "bench classifier", of.run, of.client, *purpose))


def _ours(of: ClientFeatures, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    return fit_device_classifier(x, y, of.classes, of.bits, levels=of.levels).accuracy(test_x, test_y)


def _compared(
    of: ClientFeatures,
    labels: int,
    tested: int,
    shots: int | None,
    peer: str,
    ours: Sequence[float],
    theirs: Sequence[float],
) -> Comparison:
    means = (100 * statistics.fmean(each) for each in (ours, theirs))
    return Comparison(of.run, of.client, of.bits, labels, tested, shots, peer, *means)


def _group(bits: int) -> str:
    return f"{bits} bits" if bits < 8 else "8 bits and more"


def mean_rows(found: Sequence[Comparison]) -> list[Row]:
    """Mean differences over clients with their standard errors: by peer, number of labels and bits."""
    groups = defaultdict[tuple[str, int | None, str], list[Comparison]](list)
    for one in found:
        groups[one.peer, one.shots, _group(one.bits)].append(one)
    return [
        _row(f"mean of {len(of)}", "", bits, _labels(shots, None), None, peer, of)
        for (peer, shots, bits), of in sorted(groups.items(), key=lambda g: (g[0][1] or 99, g[0][0], g[0][2]))
    ]


def client_rows(found: Sequence[Comparison]) -> list[Row]:
    """Every client's figures with all labels."""
    return [
        _row(c.client, c.run, f"{c.bits} bits", _labels(None, c.labels), c.tested, c.peer, [c])
        for c in found
        if c.shots is None
    ]


def _labels(shots: int | None, count: int | None) -> str:
    return f"{shots} a class" if shots is not None else "all" if count is None else str(count)


def _row(client: str, run: str, bits: str, labels: str, tested: int | None, peer: str, of: Sequence[Comparison]) -> Row:
    differences = [c.difference for c in of]
    error = statistics.stdev(differences) / len(of) ** 0.5 if len(of) > 1 else None
    return {
        **{"client": client, "run": run, "bits": bits, "labels": labels, "tested": tested, "peer": peer},
        "ours": round(statistics.fmean(c.ours for c in of), 2),
        "theirs": round(statistics.fmean(c.theirs for c in of), 2),
        "difference": round(statistics.fmean(differences), 2),
        "standard_error": None if error is None else round(error, 2),
    }


def run(folders: Sequence[Path], splits: int = 5, draws: int = 10, say: Say = lambda line: None) -> Record:
    """Compare on all clients of these runs; accuracies in percent, differences in points (positive: ours is better)."""
    found: list[Comparison] = []
    for folder in folders:
        for of in clients_of(folder):
            say(f"{of.run} {of.client}: {of.bits} bits, {of.train} labels")
            found.append(with_all_labels(of, splits))
            found += [one for shots in SHOTS for one in with_few_labels(of, shots, draws)]
    if not found:
        raise ValueError(f"no client of these runs has {LEAST_LABELS} labels and held-out images")
    settings = {"runs": [folder.name for folder in folders], "splits": splits, "draws": draws}
    return Record("classifier", [*client_rows(found), *mean_rows(found)], settings=settings)


__all__ = ["ClientFeatures", "Comparison", "clients_of", "run", "with_all_labels", "with_few_labels"]
