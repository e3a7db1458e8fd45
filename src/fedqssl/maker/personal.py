"""A client's device file: its low-bit model, a classifier for its own classes, and a model card."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from fedqssl.device.model import DeviceModel, from_bytes, pack_device
from fedqssl.evaluation import extract_features
from fedqssl.federated.task import Task
from fedqssl.maker.card import Card, fleet_card, run_card
from fedqssl.maker.finished_run import FinishedRun, LabeledSplit, client_extractor
from fedqssl.maker.probing import Probe, ProbeSettings, fit_probe, probe_client, probe_controls
from fedqssl.models.features import feature_dim
from fedqssl.runs.evaluate import Labeled


def device_bytes(
    run: FinishedRun, name: str, settings: ProbeSettings | None = None, probe: Probe | None = None
) -> bytes:
    """The device file of a client of a finished run; the same bytes every time.

    Args:
        run: the run.
        name: the client's name.
        settings: what the classifier is fitted on.
        probe: the classifier, if it has been fitted already.
    """
    settings = settings or ProbeSettings()
    if settings.method != "linear":
        raise ValueError("a device file holds a linear classifier; leave out --method knn")
    probe = probe or probe_client(run, name, settings)
    extractor, image = run.extractor(name), run.context.train.images.shape[1:]
    known = run.result.clients[name].controls if probe.settings.plain else None
    controls = known or probe_controls(probe, run.labeled(name, probe.settings.data))
    card = run_card(run, probe, controls, extractor, (image[0], image[1], image[2]))
    return _packed(run.context.task, extractor, probe, image[1], run.result.protocol, card)


def device_model(run: FinishedRun, name: str, settings: ProbeSettings | None = None) -> DeviceModel:
    """Like :func:`device_bytes`, but loaded."""
    return from_bytes(device_bytes(run, name, settings), trust=True)


def device_file(
    task: Task, name: str, bits: int, payload: bytes, train: Labeled, test: Labeled, class_names: Sequence[str]
) -> tuple[bytes, float | None]:
    """The device file of a client of a fleet, made on its own machine from its final model and its own labels.

    Returns:
        The file, and the accuracy on the test images, if there are any.
    """
    data = LabeledSplit(*train, *test, tuple(class_names))
    extractor = client_extractor(task, bits, payload, train[0].shape[2])
    features = [extract_features(extractor, images) for images in data.parts(task)]
    probe = fit_probe(task, name, bits, data, features)
    card = fleet_card(task, probe, probe_controls(probe, data), payload)
    return _packed(task, extractor, probe, train[0].shape[2], "fleet", card), probe.outcome.accuracy


def _packed(task: Task, extractor: fx.GraphModule, probe: Probe, size: int, protocol: str, card: Card) -> bytes:
    seen = task.extractor(task.converted(32), size)
    values = {
        "model": task.model,
        "width": task.width,
        "channels": task.in_channels,
        "size": size,
        "objective": task.objective,
        "bits": probe.bits,
        "features": task.features,
        "contrast": task.contrast,
        "feature_dim": feature_dim(seen, task.in_channels, size),
        "class_names": list(probe.class_names),
        "protocol": protocol,
        "client": probe.client,
        "card": card,
    }
    return pack_device(values, extractor, probe.classifier)


__all__ = ["device_bytes", "device_file", "device_model"]
