"""Accuracy of a run, as PAPER-TO-CODE section 8 defines it."""

from __future__ import annotations

from torch import fx

from fedqssl.engines.context import Context
from fedqssl.evaluation import extract_features, knn_accuracy, linear_probe
from fedqssl.evaluation.local import lowbit_probe
from fedqssl.federated.randomness import derived_seed
from fedqssl.lowbit import load_bytes
from fedqssl.models.network import feature_extractor

KNN_IMAGES = 1000


def _classes(context: Context) -> int:
    assert context.train.labels is not None and context.test.labels is not None
    return 1 + max(int(context.train.labels.max()), int(context.test.labels.max()))


def knn_monitor(context: Context, aggregated: fx.GraphModule) -> float | None:
    """A cheap signal per round: kNN accuracy of the aggregated model on a part of the images."""
    train, test = context.train, context.test
    if train.labels is None or test.labels is None:
        return None
    encoder = feature_extractor(aggregated)
    x = extract_features(encoder, train.images[:KNN_IMAGES])
    y = extract_features(encoder, test.images[:KNN_IMAGES])
    return float(knn_accuracy(x, train.labels[:KNN_IMAGES], y, test.labels[:KNN_IMAGES]))


def global_accuracy(context: Context, aggregated: bytes) -> float | None:
    """Full-precision linear classifier on the frozen aggregated model, trained on the centralized training set."""
    if context.train.labels is None or context.test.labels is None:
        return None
    model = context.task.converted(32)
    load_bytes(model, aggregated)
    encoder = feature_extractor(model)
    limit = context.config.evaluation.probe_images or len(context.train.images)
    train_x = extract_features(encoder, context.train.images[:limit])
    test_x = extract_features(encoder, context.test.images)
    labels = context.train.labels[:limit]
    return linear_probe(train_x, labels, test_x, context.test.labels, _classes(context)).accuracy


def client_accuracies(context: Context, payloads: dict[int, bytes]) -> dict[str, float]:
    """Each client's s-bit classifier on its own frozen s-bit extractor, tested on its own held-out images."""
    labels = context.train.labels
    if labels is None or context.test.labels is None:
        return {}
    found = {}
    for bits, payload in sorted(payloads.items()):
        model = context.task.converted(bits)
        load_bytes(model, payload)
        encoder = feature_extractor(model)
        for name in sorted(n for n, b in context.bits.items() if b == bits):
            split = context.partition.clients[name]
            x, y = (extract_features(encoder, context.train.images[i]) for i in (split.train, split.test))
            seed = derived_seed(context.config.seed, "local probe", name)
            found[name] = lowbit_probe(
                x, labels[split.train], y, labels[split.test], _classes(context), bits, seed=seed
            )
    return found
