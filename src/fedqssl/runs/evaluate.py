"""Accuracy of a run, as PAPER-TO-CODE section 8 defines it, and the cheap indicators computed each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, fx

from fedqssl.engines.pool import Pool
from fedqssl.evaluation import extract_features, knn_accuracy, linear_probe
from fedqssl.evaluation.classifier import fit_classifier, logistic_accuracy
from fedqssl.evaluation.collapse import Collapse, collapse_signals
from fedqssl.federated.context import Context, Simulation
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import Task
from fedqssl.lowbit import load_bytes

Which = Literal["global", "local"]
Labeled = tuple[Tensor, Tensor]
"""Images with their labels."""
MOST_CLIENTS = 500
"""Clients that are evaluated unless ``evaluation.clients`` says otherwise: each gets classifiers of its own."""
PROBE_IMAGES = 50_000
"""Training images of the closing probe unless ``evaluation.probe_images`` says otherwise: as many as CIFAR-10 has."""
MONITOR_IMAGES = 1000
COLLAPSE_IMAGES = 256
NO_LABELS = "the data have no labels, so accuracy cannot be measured"


def unmeasured(context: Context) -> str | None:
    """Why no accuracy can be measured in this place, in a sentence; None if one can. A fleet's clients measure their own."""
    if context.train.labels is None or context.test.labels is None:
        if not isinstance(context, Simulation):
            return "the server has no labeled images (--eval), so the global accuracy is not measured"
        return NO_LABELS
    if len(context.test) or held_out(context):
        return None
    return "no images are held out (evaluation.holdout), so accuracy is not measured"


def evaluated(context: Context) -> list[str]:
    """Clients that are evaluated in the end, by name: all, or in a large simulation a sample of ``evaluation.clients``.

    Clients of a real fleet evaluate themselves.
    """
    names, limit = sorted(context.bits), context.config.evaluation.clients or MOST_CLIENTS
    if not isinstance(context, Simulation) or len(names) <= limit:
        return names
    order = torch.randperm(len(names), generator=generator(context.config.seed, "evaluated clients"))
    return sorted(names[i] for i in order[:limit].tolist())


def held_out(context: Context) -> list[str]:
    """Evaluated clients with labeled held-out images in this place, those with most training images first."""
    if not isinstance(context, Simulation) or context.train.labels is None:
        return []
    names = (name for name in evaluated(context) if len(context.partition.clients[name].test))
    return sorted(names, key=lambda name: (-context.sizes[name], name))


def load(task: Task, bits: int, payload: bytes, device: torch.device | None = None) -> fx.GraphModule:
    """A model as it travels, ready to be evaluated on a device, by default the CPU."""
    model = task.converted(bits)
    load_bytes(model, payload)
    model.to(device).eval()
    return model


def knn_monitor(context: Context, aggregated: fx.GraphModule) -> float | None:
    """A cheap indicator for each round: kNN accuracy of the aggregated model on a subset of the images."""
    train, test = context.train, context.test
    if train.labels is None or test.labels is None or not len(test):
        return None
    encoder = context.task.extractor(aggregated.to(context.device), train.images.shape[-1])
    known, asked = (some(len(part.images), MONITOR_IMAGES) for part in (train, test))
    x, y = extract_features(encoder, train.images[known]), extract_features(encoder, test.images[asked])
    return float(knn_accuracy(x, train.labels[known], y, test.labels[asked]))


def some(count: int, limit: int | None) -> Tensor | slice:
    """At most ``limit`` of so many images, always the same ones; not the first, which in a folder all belong to one class."""
    if limit is None or limit >= count:
        return slice(None)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:limit]


@torch.no_grad()
def collapse_monitor(context: Context, aggregated: fx.GraphModule) -> Collapse:
    """Label-free indicators of the aggregated model on views of the buffer; the same views in every round."""
    images = context.buffer()[:COLLAPSE_IMAGES]
    aggregated.to(images.device).eval()
    views = context.task.two_views(images, generator(context.config.seed, "collapse signals"))
    x, y = context.task.extractor(aggregated, views.shape[-1])(views).flatten(1).chunk(2)
    return collapse_signals(x, y)


def _features(encoder: torch.nn.Module, context: Context) -> tuple[Tensor, Tensor, Tensor]:
    part = some(len(context.train.images), context.config.evaluation.probe_images or PROBE_IMAGES)
    assert context.train.labels is not None
    train = extract_features(encoder, context.train.images[part])
    return train, context.train.labels[part], extract_features(encoder, context.test.images)


def _probed(context: Context, model: fx.GraphModule) -> float:
    """Full-precision linear classifier on the frozen model, trained on the centralized training set."""
    assert context.test.labels is not None
    x, labels, y = _features(context.task.extractor(model, context.train.images.shape[-1]), context)
    if context.config.evaluation.probe == "fixed":
        return linear_probe(x, labels, y, context.test.labels, context.task.classes).accuracy
    task = context.task
    return logistic_accuracy(x, labels, y, context.test.labels, task.classes, levels=task.levels())


def _classified(model: fx.GraphModule, images: Tensor, labels: Tensor) -> float:
    """Accuracy of a model that ends in a classifier."""
    return float((extract_features(model, images).argmax(1).cpu() == labels).double().mean())


def global_accuracy(context: Context, bits: int, payload: bytes) -> float:
    """Accuracy of a model on the uniform test set. Self-supervised: a linear probe. Supervised: the model's own classifier."""
    model = load(context.task, bits, payload, context.device)
    if not context.task.supervised:
        return _probed(context, model)
    assert context.test.labels is not None
    return _classified(model, context.test.images, context.test.labels)


def client_accuracy(context: Simulation, name: str, payload: bytes) -> float:
    """Accuracy of a client in its own bits on its own held-out images.

    Self-supervised: an s-bit classifier on the client's frozen s-bit extractor. Supervised: the model as given.
    """
    split, images, labels = context.partition.clients[name], context.train.images, context.train.labels
    assert labels is not None
    train, test = ((images[part], labels[part]) for part in (split.train, split.test))
    return own_accuracy(context.task, name, context.bits[name], payload, train, test, context.device)


def _accuracy(context: Context, which: Which, name: str, bits: int, payload: bytes) -> float:
    """One accuracy of a run: a job for any process that has the images."""
    if which == "global":
        return global_accuracy(context, bits, payload)
    assert isinstance(context, Simulation)
    return client_accuracy(context, name, payload)


def evaluate(
    context: Context, pool: Pool[Any], models: Mapping[str, bytes], own: Mapping[str, bytes]
) -> tuple[float | None, dict[str, float]]:
    """Global accuracy, the mean over ``models``, and the local accuracy of each client's ``own`` model.

    Models are named after their clients; the aggregated one and those of clusters are in full precision.
    What has no labels or no test images is not measured.
    """
    if unmeasured(context):
        return None, {}
    jobs: dict[tuple[Which, str], bytes] = {("global", n): models[n] for n in sorted(models) if len(context.test)}
    jobs |= {("local", n): own[n] for n in held_out(context) if n in own}
    bits = {name: context.bits.get(name, 32) for _, name in jobs}
    found = pool.run("evaluation", _accuracy, {key: (*key, bits[key[1]], data) for key, data in jobs.items()})
    shares = [found[key] for key in jobs if key[0] == "global"]
    local = {n: found[which, n] for which, n in sorted(jobs) if which == "local"}
    return sum(shares) / len(shares) if shares else None, local


def own_accuracy(
    task: Task,
    name: str,
    bits: int,
    payload: bytes,
    train: Labeled,
    test: Labeled,
    device: torch.device | None = None,
) -> float:
    """Accuracy of one client's model on its held-out images; images come with their labels.

    Features are computed on the device; the classifier is fitted on the CPU, as thousands of small steps in float64.
    """
    model = load(task, bits, payload, device)
    if task.supervised:
        return _classified(model, *test)
    encoder = task.extractor(model, train[0].shape[-1])
    x, y = (extract_features(encoder, images).cpu() for images, _ in (train, test))
    seed = derived_seed(task.seed, "local probe", name)
    fitted = fit_classifier(task.classifier, x, train[1], task.classes, bits, seed, task.levels())
    return fitted.accuracy(y, test[1])
