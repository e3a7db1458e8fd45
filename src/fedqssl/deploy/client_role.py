"""A client on its own machine: its images, labels and state. What leaves the machine is in ``fedqssl.engines.flower.wire``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedqssl.accelerators import put, resolve
from fedqssl.data.images import DataError, ImageSet, with_channels
from fedqssl.deploy.events import Events
from fedqssl.deploy.store import Store, round_key
from fedqssl.engines.flower.wire import Capabilities, Request
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.job import ClientData
from fedqssl.federated.perform import perform
from fedqssl.maker.personal import device_file


class FleetClient:
    """See :class:`fedqssl.engines.flower.client.ClientProtocol`.

    Args:
        name: the client's name, which is that of its key.
        bits: the bitwidth that it can afford.
        train: its training images; labels are used if a supervised algorithm asks for them, and at the end.
        test: its held-out images.
        store: where it keeps its state.
        events: its log.
        trust: whether a model named by the server may be imported (``package.module:Class``).
        reload: reads ``train`` and ``test`` again, in another size, for a run whose ``image_size`` is not theirs.
        device: what it trains on; its own choice, which no message carries.
    """

    def __init__(
        self,
        name: str,
        bits: int,
        train: ImageSet,
        test: ImageSet,
        store: Store,
        events: Events,
        trust: bool = False,
        reload: Callable[[int], tuple[ImageSet, ImageSet]] | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = resolve(device)
        self.name, self.bits, self.trust, self.store, self.events, self.reload = (
            name,
            bits,
            trust,
            store,
            events,
            reload,
        )
        self.split = store.split(train, test)
        self.held, self.tested = self._parts(train, test)

    def _parts(self, train: ImageSet, test: ImageSet) -> tuple[ImageSet, ImageSet]:
        both = _joined(train, test)
        return both.subset(self.split[0]), both.subset(self.split[1])

    def _resize(self, size: int) -> None:
        """Hold the same images in this size."""
        if self.reload is None or size == self.held.images.shape[-1]:
            return
        parts = self.reload(size)
        if sum(map(len, parts)) != len(self.held) + len(self.tested):
            raise DataError(f"the images of {self.name} have changed since it was started; start it again")
        self.held, self.tested = self._parts(*parts)

    def capabilities(self) -> Capabilities:
        """What the server may know."""
        return Capabilities(self.name, self.bits, len(self.held), len(self.tested))

    def train(self, request: Request, payload: bytes) -> tuple[bytes, ClientMetrics]:
        """Train a round; a repeated round is answered with the same bytes."""
        job = request.job(trust=self.trust)
        names = list(request.class_names or ())
        key = round_key(request.run, self.name, self.bits, len(self.held), request.order, names, payload)
        known = self.store.recall(key)
        if known is not None:
            self.events.note("round repeated", round=job.round_number + 1)
            return known
        self._resize(job.task.image_size)
        channels = job.task.in_channels
        labels = self._labels(self.held, request.class_names) if job.task.supervised else None
        images = put(with_channels(self.held.images, channels), self.device)
        data = ClientData(self.name, self.bits, images, None if labels is None else put(labels, self.device))
        sent, metrics = perform(job, payload, data)
        self.store.keep(key, payload, sent, metrics)
        self.events.note(
            "round done", round=job.round_number + 1, received=len(payload), sent=len(sent), seconds=metrics.seconds
        )
        return sent, metrics

    def evaluate(self, request: Request, payload: bytes) -> float | None:
        """Save the final model and, with labels, a device file with a classifier; returns its accuracy on the held-out images."""
        task = request.job(trust=self.trust).task
        self.store.own("model.fqssl", payload)
        self.events.note("final model", bytes=len(payload))
        if self.held.labels is None or self.tested.labels is None:
            return None
        self._resize(task.image_size)
        fleets = request.class_names if task.supervised else None
        if not task.supervised:  # a classifier of the client's own, for its own classes
            task = replace(task, classes=max(self.held.num_classes or 0, self.tested.num_classes or 0))
        train, test = (
            (with_channels(part.images, task.in_channels), self._labels(part, fleets))
            for part in (self.held, self.tested)
        )
        names = fleets or self.held.class_names or tuple(map(str, range(task.classes)))
        made, accuracy = device_file(task, self.name, self.bits, payload, train, test, names)
        self.store.own("device.fqssl", made)
        return accuracy

    @staticmethod
    def _labels(part: ImageSet, fleets: tuple[str, ...] | None) -> Tensor:
        """The client's labels, in the fleet's numbering of classes if it has one: matched by name where names are known."""
        if part.labels is None:
            raise DataError("the run trains with labels, but these images have none")
        if fleets is None or part.class_names is None:
            return part.labels
        unknown = sorted(set(part.class_names) - set(fleets))
        if unknown:
            raise DataError(f"the fleet has no class {unknown[0]!r}; its classes: {', '.join(fleets)}")
        return torch.tensor([fleets.index(name) for name in part.class_names])[part.labels]


def _joined(first: ImageSet, second: ImageSet) -> ImageSet:
    labels = None
    if first.labels is not None and second.labels is not None:
        labels = torch.cat([first.labels, second.labels])
    return ImageSet(torch.cat([first.images, second.images]), labels, first.class_names)
