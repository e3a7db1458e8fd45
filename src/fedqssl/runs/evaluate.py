"""Accuracy of a run, as PAPER-TO-CODE section 8 defines it, and the cheap signals of each round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from fedqssl.engines.context import Context
from fedqssl.evaluation import extract_features, knn_accuracy, linear_probe
from fedqssl.evaluation.collapse import Collapse, collapse_signals
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import Task
from fedqssl.lowbit import load_bytes
from fedqssl.models.network import feature_extractor
from fedqssl.ssl.views import two_views

Labeled = tuple[Tensor, Tensor]
"""Images with their labels."""
MONITOR_IMAGES = 1000
COLLAPSE_IMAGES = 256


def has_labels(context: Context) -> bool:
    """Whether accuracies can be measured."""
    return context.train.labels is not None and context.test.labels is not None


def load(task: Task, bits: int, payload: bytes) -> fx.GraphModule:
    """A model on the wire, ready to be evaluated."""
    model = task.converted(bits)
    load_bytes(model, payload)
    model.eval()
    return model


def knn_monitor(context: Context, aggregated: fx.GraphModule) -> float | None:
    """A cheap signal per round: kNN accuracy of the aggregated model on a part of the images."""
    train, test = context.train, context.test
    if train.labels is None or test.labels is None:
        return None
    encoder = feature_extractor(aggregated)
    known, asked = (some(len(part.images), MONITOR_IMAGES) for part in (train, test))
    x, y = extract_features(encoder, train.images[known]), extract_features(encoder, test.images[asked])
    return float(knn_accuracy(x, train.labels[known], y, test.labels[asked]))


def some(count: int, limit: int | None) -> Tensor | slice:
    """No more than ``limit`` of so many images, always the same; not the first ones, which in a folder are of one class."""
    if limit is None or limit >= count:
        return slice(None)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:limit]


@torch.no_grad()
def collapse_monitor(context: Context, aggregated: fx.GraphModule) -> Collapse:
    """Label-free signals of the aggregated model on views of the buffer; the same views in every round."""
    images = context.buffer()[:COLLAPSE_IMAGES]
    aggregated.eval()
    views = two_views(images, generator(context.config.seed, "collapse signals"))
    x, y = feature_extractor(aggregated)(views).flatten(1).chunk(2)
    return collapse_signals(x, y)


def _features(encoder: torch.nn.Module, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    part = some(len(context.train.images), context.config.evaluation.probe_images or None)
    assert context.train.labels is not None
    train = extract_features(encoder, context.train.images[part])
    return train, context.train.labels[part], extract_features(encoder, context.test.images)


def _probed(context: Context, model: fx.GraphModule) -> float:
    """Full-precision linear classifier on the frozen model, trained on the centralized training set."""
    assert context.test.labels is not None
    x, labels, y = _features(feature_extractor(model), context)
    return linear_probe(x, labels, y, context.test.labels, context.task.classes).accuracy


def _classified(model: fx.GraphModule, images: Tensor, labels: Tensor) -> float:
    """Accuracy of a model that ends in a classifier."""
    return float((extract_features(model, images).argmax(1) == labels).double().mean())


def global_accuracy(context: Context, aggregated: bytes | None, payloads: Mapping[str, bytes]) -> float | None:
    """Of the aggregated model on the uniform test set; without one, the mean over the clients' own models.

    Self-supervised: a linear probe. Supervised: the model's own classifier.
    """
    if context.test.labels is None or context.train.labels is None:
        return None
    if aggregated is None:
        found = [_probed(context, load(context.task, context.bits[n], payloads[n])) for n in sorted(payloads)]
        return sum(found) / len(found)
    model = load(context.task, 32, aggregated)
    if context.task.supervised:
        return _classified(model, context.test.images, context.test.labels)
    return _probed(context, model)


def client_accuracies(context: Context, payloads: Mapping[str, bytes]) -> dict[str, float]:
    """Every client in its own bits, tested on its own held-out images.

    Self-supervised: an s-bit classifier on the client's frozen s-bit extractor. Supervised: the model as it is given here.
    """
    labels = context.train.labels
    if labels is None or context.test.labels is None:
        return {}
    found = {}
    for name in sorted(payloads):
        split = context.partition.clients[name]
        held = (
            (context.train.images[split.train], labels[split.train]),
            (context.train.images[split.test], labels[split.test]),
        )
        found[name] = own_accuracy(context.task, name, context.bits[name], payloads[name], *held)
    return found


def own_accuracy(task: Task, name: str, bits: int, payload: bytes, train: Labeled, test: Labeled) -> float:
    """Of one client's model on its held-out images; images go with their labels."""
    model = load(task, bits, payload)
    if task.supervised:
        return _classified(model, *test)
    encoder = feature_extractor(model)
    x, y = (extract_features(encoder, images) for images, _ in (train, test))
    seed = derived_seed(task.seed, "local probe", name)
    return fit_lowbit_classifier(x, train[1], task.classes, bits, seed=seed).accuracy(y, test[1])
