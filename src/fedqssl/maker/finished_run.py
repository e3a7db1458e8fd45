"""A finished run as the source of device models: its data, its clients' models, and their features, cached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, fx

from fedqssl.config import RunConfig, load_run_config
from fedqssl.config.load import check_trusted
from fedqssl.data.images import ImageSet, with_channels
from fedqssl.data.registry import load_dataset
from fedqssl.evaluation import extract_features
from fedqssl.federated.context import Simulation, build_simulation, class_count
from fedqssl.federated.task import Task
from fedqssl.files import write_atomically
from fedqssl.imported import nearest
from fedqssl.runs import RunFolder, RunResult
from fedqssl.runs.evaluate import load
from fedqssl.runs.folder import RunError


@dataclass(frozen=True, eq=False)
class LabeledSplit:
    """Images to fit a classifier on and to test it on, with the names of their classes."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]

    def parts(self, task: Task) -> tuple[Tensor, ...]:
        """The images whose features a probe needs, test images last; a supervised model needs none to be trained."""
        wanted = (self.test,) if task.supervised else (self.train, self.test)
        return tuple(part for part in wanted if len(part))


def client_extractor(task: Task, bits: int, payload: bytes, size: int) -> fx.GraphModule:
    """The frozen extractor in a client's own bits, from its model on the wire (supervised: the whole model)."""
    model = load(task, bits, payload)
    return model if task.supervised else task.extractor(model, size)


@dataclass(eq=False)
class FinishedRun:
    """The folder of a finished run, opened; :meth:`open` checks it."""

    folder: RunFolder
    config: RunConfig
    result: RunResult
    _others: dict[str, LabeledSplit] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, *, trust: bool = False) -> FinishedRun:
        """Open a run.

        Args:
            path: its folder.
            trust: allow importing a model or an algorithm that the run names as ``package.module:NAME``, which runs its code.

        Raises:
            RunError: the folder is not a run, or the run is not finished; the message says what to do.
        """
        folder = RunFolder.open(path)
        if not (path / "result.json").is_file():
            raise RunError(f"{path} is not finished; resume it first: fedqssl run --resume {path}")
        config = load_run_config(path)
        if config.engine == "flower":
            own = "clients/NAME/state/device.fqssl on that client's machine"
            raise RunError(f"{path} is a run of a fleet, and clients keep their images; use {own}")
        check_trusted(config, path, trust)
        return cls(folder, config, RunResult.read(path))

    @cached_property
    def context(self) -> Simulation:
        """The run's data and partition, built again and compared with the run's record."""
        context = build_simulation(self.config)
        if self.folder.read_json("partition.json") != json.loads(json.dumps(context.partition_json())):
            raise RunError(f"the data behind {self.folder.path} have changed: restore them, or use --data")
        return context

    def client(self, name: str) -> str:
        """The name, if the run has such a client."""
        names = list(self.result.clients)
        if name not in names:
            raise RunError(
                f"{self.folder.path} has no client {name!r}{nearest(name, names)} (clients: {names[0]} to {names[-1]})"
            )
        return name

    def payload(self, name: str) -> bytes:
        """A client's own model, as stored in the run."""
        path = self.folder.path / "clients" / self.client(name) / "model.fqssl"
        try:
            return path.read_bytes()
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}); delete result.json and resume the run"
            ) from error

    def extractor(self, name: str) -> fx.GraphModule:
        """A client's frozen extractor in its own bits (of a supervised run: the whole model)."""
        bits = self.result.clients[self.client(name)].bits
        return client_extractor(self.context.task, bits, self.payload(name), self.context.train.images.shape[-1])

    def own(self, name: str) -> LabeledSplit:
        """The client's own split of the run's data."""
        train, split = self.context.train, self.context.partition.clients[self.client(name)]
        why = f"{self.config.data} has no labels; pass --data folder:PATH with a sub-folder per class"
        return _labeled(train.subset(split.train), train.subset(split.test), self.context.task.classes, why)

    def other(self, data: str) -> LabeledSplit:
        """Other data, converted to the size and channels of the run's images."""
        if data not in self._others:
            channels, size = self.context.train.images.shape[1:3]
            found = [load_dataset(data, s, self.config.data_dir, size=size) for s in ("train", "test")]
            train, test = (replace(part, images=with_channels(part.images, channels)) for part in found)
            why = f"{data} has no labels; sort its images into one sub-folder per class"
            self._others[data] = _labeled(train, test, class_count(train, test), why)
        return self._others[data]

    def labeled(self, name: str, data: str | None) -> LabeledSplit:
        """The client's own split, or other data."""
        return self.own(name) if data is None else self.other(data)

    def features(self, name: str, images: Sequence[Tensor]) -> list[Tensor]:
        """Features of each of these image tensors, from ``RUN/cache`` if the same were asked for before."""
        task = self.context.task
        key = hashlib.sha256(self.payload(name) + f"{task.features} {task.contrast}".encode())
        for part in images:
            key.update(str(tuple(part.shape)).encode() + part.contiguous().numpy().tobytes())
        path = self.folder.path / "cache" / f"features-{key.hexdigest()[:24]}.safetensors"
        names = [f"part-{i}" for i in range(len(images))]
        with suppress(SafetensorError, ValueError, KeyError, OSError):  # missing or damaged: computed again
            kept = safetensors.torch.load(path.read_bytes())
            return [kept[n] for n in names]
        extractor = self.extractor(name)
        found = [extract_features(extractor, part) for part in images]
        with suppress(OSError):  # a folder that cannot be written to costs time only
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, safetensors.torch.save(dict(zip(names, found, strict=True))))
        return found


def _labeled(train: ImageSet, test: ImageSet, classes: int, unlabeled: str) -> LabeledSplit:
    if train.labels is None or test.labels is None:
        raise RunError(unlabeled)
    names = train.class_names or tuple(map(str, range(classes)))
    return LabeledSplit(train.images, train.labels, test.images, test.labels, names)


def few(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Positions of a share of the labels, at least one of each class, in order."""
    if share >= 1:
        return torch.arange(len(labels))
    kept = []
    for label in torch.unique(labels):
        members = (labels == label).nonzero().flatten()
        count = max(1, round(share * len(members)))
        kept.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(kept).sort().values


__all__ = ["FinishedRun", "LabeledSplit", "client_extractor", "few"]
