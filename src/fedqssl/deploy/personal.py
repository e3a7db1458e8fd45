"""A client's device file, made on the client's own machine from its final model and its own labels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedqssl.device.model import described, extractor_of, pack_device
from fedqssl.evaluation import extract_features
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.evaluation.outcome import outcome
from fedqssl.federated.randomness import derived_seed
from fedqssl.federated.task import Task
from fedqssl.lowbit import Precision
from fedqssl.runs.evaluate import Labeled, load


def device_file(
    task: Task, name: str, bits: int, payload: bytes, train: Labeled, test: Labeled, class_names: Sequence[str]
) -> tuple[bytes, float]:
    """For ``fedqssl predict`` and ``serve``: the extractor, a classifier in its bits, a card; and the test accuracy."""
    extractor = extractor_of(load(task, bits, payload), task.supervised)
    classifier, found = None, extract_features(extractor, test[0])
    if not task.supervised:
        seed = derived_seed(task.seed, "local probe", name)
        features = extract_features(extractor, train[0])
        classifier = fit_lowbit_classifier(features, train[1], task.classes, bits, seed=seed)
        found = classifier.logits(found)
    judged = outcome(found.softmax(1), test[1])
    channels, size = train[0].shape[1:3]
    values = {
        **described(task, bits, channels, size),
        "class_names": list(class_names),
        "protocol": "fleet",
        "client": name,
        "card": {
            "data": {"labels used": len(train[1]), "labels by class": _counts(train[1], len(class_names))},
            "training": {"objective": task.objective, "batch_size": task.batch_size, "seed": task.seed},
            "bits": {"weights": Precision.for_bits(bits).weight, "activations": Precision.for_bits(bits).activation},
            "accuracy": {
                "test accuracy": judged.accuracy,
                "test images": judged.images,
                "calibration error": judged.calibration_error,
                "by class": judged.per_class(),
            },
            "cost": {"bytes of the model on the wire": len(payload)},
        },
    }
    return pack_device(values, extractor, classifier), judged.accuracy


def _counts(labels: Tensor, classes: int) -> list[int]:
    counts: list[int] = labels.bincount(minlength=classes).tolist()
    return counts
