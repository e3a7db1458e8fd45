"""A client's device file, made on the client's own machine from its final model and its own labels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedqssl.device.model import extractor_of, pack_device
from fedqssl.evaluation import extract_features
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.federated.randomness import derived_seed
from fedqssl.federated.task import Task
from fedqssl.lowbit import Precision
from fedqssl.runs.evaluate import load


def device_file(
    task: Task,
    name: str,
    bits: int,
    payload: bytes,
    train: tuple[Tensor, Tensor],
    class_names: Sequence[str],
    accuracy: float,
    tested: int,
) -> bytes:
    """For ``fedqssl predict`` and ``serve``: the extractor, the s-bit classifier that was judged, and facts about both."""
    extractor = extractor_of(load(task, bits, payload), task.supervised)
    classifier = None
    if not task.supervised:
        features, seed = extract_features(extractor, train[0]), derived_seed(task.seed, "local probe", name)
        classifier = fit_lowbit_classifier(features, train[1], task.classes, bits, seed=seed)
    precision, (channels, size) = Precision.for_bits(bits), train[0].shape[1:3]
    card = {
        "data": {"images of this client": len(train[0]), "labels used": len(train[0])},
        "training": {"objective": task.objective, "batch_size": task.batch_size, "seed": task.seed},
        "bits": {"weights": precision.weight, "activations": precision.activation},
        "accuracy": {"test accuracy": accuracy, "test images": tested},
        "cost": {"bytes of the model": len(payload)},
    }
    values = {
        "model": task.model,
        "width": task.width,
        "channels": channels,
        "size": size,
        "objective": task.objective,
        "bits": bits,
        "feature_dim": int(task.network().encoder.feature_dim),  # type: ignore[arg-type]
        "class_names": list(class_names),
        "protocol": "fleet",
        "client": name,
        "card": card,
    }
    return pack_device(values, extractor, classifier)
