"""What client and server share: the network, the objective, and the steps of Algorithm 2."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedqssl.accelerators import put, seeded
from fedqssl.evaluation.classifier import ClassifierKind
from fedqssl.federated.randomness import derived_seed
from fedqssl.lowbit import LowBitOptions, LowBitSGD, Precision, copy_of, to_lowbit
from fedqssl.lowbit.container import Reader
from fedqssl.models.contrast import Contrast, stretched, with_contrast
from fedqssl.models.features import FEATURES, Features, features_of, part_lengths
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import IMAGE_SIZE, build_model
from fedqssl.ssl.byol import TargetNetwork
from fedqssl.ssl.objectives import get_objective
from fedqssl.ssl.views import ViewConfig, two_views

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs of 2N views, indices of the N images) -> loss."""
SUPERVISED = "supervised"
"""The objective of the supervised baselines: cross-entropy of a linear classifier, which takes the heads' place."""


@dataclass(frozen=True)
class Task:
    """Settings that server and clients share; built once from a run's configuration."""

    model: str
    width: int
    in_channels: int
    objective: str
    temperature: float
    batch_size: int
    seed: int
    options: LowBitOptions
    classes: int = 0
    views: ViewConfig = field(default_factory=ViewConfig)
    classifier: ClassifierKind = "sgd"
    features: Features = "pooled"
    image_size: int = IMAGE_SIZE
    momentum: float = 0.99
    contrast: Contrast = "as_is"

    @property
    def supervised(self) -> bool:
        """Whether training uses labels."""
        return self.objective == SUPERVISED

    def _heads(self, dim: int) -> nn.Module:
        return nn.Linear(dim, self.classes) if self.supervised else get_objective(self.objective).heads(dim)

    def network(self) -> SelfSupervisedNetwork:
        """The float network with the run's initial weights."""
        with torch.random.fork_rng(devices=[]):  # built on the CPU, whatever it will run on
            torch.default_generator.manual_seed(derived_seed(self.seed, "initial weights") % 2**63)
            encoder = build_model(self.model, self.width, self.in_channels, self.image_size)
            heads = self._heads(int(encoder.feature_dim))  # type: ignore[arg-type]
        return SelfSupervisedNetwork(encoder, heads)

    def converted(self, bits: int) -> fx.GraphModule:
        """The network in this many bits (32: the same function without rounding), initial weights quantized."""
        return copy_of(_prototype(self, bits))  # far less time than a conversion takes, and roles need many

    def reader(self, bits: int) -> Reader:
        """One model per bitwidth for reading payloads, filled and read immediately; never keep or train it."""
        return _reader(self, bits)

    def extractor(self, model: fx.GraphModule, size: int) -> fx.GraphModule:
        """The part of a run's model that gives the run's features of images of this size; weights are shared."""
        return with_contrast(features_of(model, self.features, self.in_channels, size), self.contrast)

    def levels(self) -> tuple[int, ...] | None:
        """Lengths of the parts of the run's features that a classifier weighs against each other; None: it weighs nothing."""
        return None if self.supervised or not FEATURES[self.features].weighed else _levels(self)

    def batch(self, images: int) -> int:
        """Images per step of a client with this many images: a full batch, or all of them if there are fewer."""
        return min(self.batch_size, images)

    def steps(self, images: int) -> int:
        """Steps of an epoch (:func:`batches`): full batches only; fewer images than a batch make one step."""
        return max(images // self.batch_size, 1)

    def two_views(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Two views of each uint8 image (N, C, H, W), as the run's settings make them: (2N, C, H', W')."""
        return two_views(stretched(images) if self.contrast == "stretch" else images, generator, self.views)

    def loss(self, outputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """The objective's loss of 2N views; labels (N,) are used only by the supervised objective."""
        if self.supervised:
            if labels is None:
                raise ValueError("a supervised algorithm needs labels, but these data have none")
            return F.cross_entropy(outputs, labels.repeat(2))
        return get_objective(self.objective).loss(outputs, self.temperature)

    @property
    def has_target(self) -> bool:
        """Whether training needs a target network, a second copy of the model."""
        return not self.supervised and get_objective(self.objective).against is not None

    def against_target(self, outputs: Tensor, target: Tensor) -> Tensor:
        """What the loss reads, of the outputs of the network and of its target network."""
        against = get_objective(self.objective).against
        return outputs if against is None else against(outputs, target)


@functools.lru_cache(maxsize=16)
def _prototype(task: Task, bits: int) -> fx.GraphModule:
    return to_lowbit(task.network(), Precision.for_bits(bits), task.options)


@functools.lru_cache(maxsize=16)
def _levels(task: Task) -> tuple[int, ...]:
    size = task.image_size
    return part_lengths(features_of(task.converted(32), task.features, task.in_channels, size), task.in_channels, size)


@functools.lru_cache(maxsize=16)
def _reader(task: Task, bits: int) -> Reader:
    return Reader(task.converted(bits))


def batches(
    count: int, batch_size: int, generator: torch.Generator, device: torch.device | None = None
) -> list[Tensor]:
    """Indices of one epoch, on a device: full batches of a random order; fewer images than a batch make one batch."""
    order = torch.randperm(count, generator=generator)
    order = order if device is None else put(order, device)
    if count < batch_size:
        return [order]
    return list(order[: count // batch_size * batch_size].view(-1, batch_size))


def train_epoch(
    model: fx.GraphModule,
    opt: LowBitSGD | None,
    images: Tensor,
    task: Task,
    generator: torch.Generator,
    labels: Tensor | None = None,
) -> float:
    """One epoch of Algorithm 2 over uint8 images; returns the mean loss. Without an optimiser nothing is updated."""
    return train_steps(model, opt, images, task, generator, task.steps(len(images)), labels)[-1]


def train_steps(
    model: fx.GraphModule,
    opt: LowBitSGD | None,
    images: Tensor,
    task: Task,
    generator: torch.Generator,
    steps: int,
    labels: Tensor | None = None,
    done: Callable[[int], None] = lambda steps: None,
    loss_of: Loss | None = None,
) -> list[float]:
    """So many steps of Algorithm 2 over uint8 images, epoch after epoch, where the images and the model are.

    Without an optimiser nothing is updated.
    Every epoch has a random order of its own; the last one ends with the last step. After every epoch ``done`` gets the
    number of steps so far. ``loss_of`` replaces the task's loss. Returns the mean loss of each epoch's worth of steps, counted
    from the end: the last one is whole. A target network starts as a copy of the model and ends with the last step.
    """
    model.train(opt is not None)
    target = None
    if opt is not None and loss_of is None and task.has_target:
        target = TargetNetwork(model, task.momentum)
    if loss_of is None:

        def loss_of(outputs: Tensor, index: Tensor) -> Tensor:
            return task.loss(outputs, None if labels is None else labels[index])

    losses: list[float] = []
    while len(losses) < steps:
        found: list[Tensor] = []  # read once per epoch: reading a loss makes the host wait for the GPU
        with _own_randomness(generator, images.device):
            for index in batches(len(images), task.batch_size, generator, images.device)[: steps - len(losses)]:
                views = task.two_views(images[index], generator)
                with torch.set_grad_enabled(opt is not None):
                    outputs = model(views)
                    if target is not None:
                        outputs = task.against_target(outputs, target(views))
                    loss = loss_of(outputs, index)
                if opt is not None:
                    torch.autograd.backward(loss)
                    opt.step()
                    if target is not None:
                        target.follow(model, opt.generator)
                found.append(loss.detach())
        losses += [float(loss) for loss in torch.stack(found).tolist()]
        done(len(losses))
    return _means(losses, task.steps(len(images)))


def _means(losses: list[float], size: int) -> list[float]:
    """Means of ``size`` losses each, counted from the end; the first may be of fewer."""
    ends = range(len(losses) % size or size, len(losses) + 1, size)
    parts = [losses[max(end - size, 0) : end] for end in ends]
    return [
        functools.reduce(float.__add__, part) / len(part) for part in parts
    ]  # sum() differs between versions of Python


@contextmanager
def _own_randomness(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Dropout in a user's model draws from torch's global generator: inside this context, that is seeded from ours."""
    state = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
    with torch.random.fork_rng(devices=seeded(device)):
        torch.manual_seed(int.from_bytes(state[:8], "little"))
        yield
