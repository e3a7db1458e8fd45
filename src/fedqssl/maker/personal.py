"""From a finished run to a client's device model."""

from __future__ import annotations

from fedqssl.device.model import DeviceModel, described, from_bytes, pack_device
from fedqssl.maker.card import card_values
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.probing import Probe, ProbeSettings, probe_client


def device_bytes(
    run: FinishedRun, name: str, settings: ProbeSettings | None = None, probe: Probe | None = None
) -> bytes:
    """A client's device file: its model, its classifier (fitted here, or ``probe``), its card; the same bytes every time."""
    settings = settings or ProbeSettings()
    if settings.method != "linear":
        raise ValueError("a device file holds a linear classifier; leave out --method knn")
    probe = probe or probe_client(run, name, settings)
    extractor, task = run.extractor(name), run.context.task
    channels, size = run.context.train.images.shape[1:3]
    shape = (channels, size, run.context.train.images.shape[3])
    values = {
        **described(task, probe.bits, channels, size),
        "class_names": list(probe.class_names),
        "protocol": run.result.protocol,
        "client": name,
        "card": card_values(run, probe, extractor, shape),
    }
    return pack_device(values, extractor, probe.classifier)


def device_model(run: FinishedRun, name: str, settings: ProbeSettings | None = None) -> DeviceModel:
    """As :func:`device_bytes`, loaded."""
    return from_bytes(device_bytes(run, name, settings), trust=True)


__all__ = ["device_bytes", "device_model"]
