"""One network in one bitwidth: its container, its formulas and, if asked for, a training step measured on this machine."""

from __future__ import annotations

import functools
import json
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from fedqssl.accelerators import put, resolve, synchronize
from fedqssl.config import RunConfig
from fedqssl.cost.formulas import (
    BitOperations,
    Memory,
    ObjectiveCost,
    objective_cost,
    saved_bytes,
    step_memory,
    step_operations,
)
from fedqssl.cost.sizes import Sizes
from fedqssl.cost.trace import Trace, trace
from fedqssl.federated.algorithms import get_algorithm
from fedqssl.federated.context import make_task
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitSGD, LowBitWeight, to_bytes
from fedqssl.lowbit.container import check_bytes
from fedqssl.lowbit.policy import state_of
from fedqssl.ssl.byol import TargetNetwork

Say = Callable[[str], None]

VIEWS = 2
"""Views of each image that enter the network."""
SMALL = 2
"""Images of the first timed step; a second size gives the cost per image."""
FLOOR = 10
"""Least number of images of the second step, whatever the budget: closer sizes give no reliable slope."""
CHEAP = 0.5
"""Steps shorter than this many seconds are repeated, for a median."""


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Wire:
    """The sizes of the parts of a model's container.

    Args:
        packed: the weights: packed codes, or floats at full precision.
        floats: scales, batch norm, biases and ranges, as 16- or 32-bit floats.
        frame: header, names, checksum.
        most: its length if every float needed 32 bits; batch-norm tensors travel in 16 bits where that keeps 3 digits.
    """

    packed: int
    floats: int
    frame: int
    most: int

    @property
    def total(self) -> int:
        """The buffer's length."""
        return self.packed + self.floats + self.frame


def wire(model: nn.Module) -> Wire:
    """Pack a model from ``to_lowbit`` and take the buffer apart."""
    data = to_bytes(model)
    blob = check_bytes(data)
    length = struct.unpack_from("<Q", blob)[0]
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    quantized = (entry for entry in state_of(model).values() if entry.role == "quantized")
    weights = {f"{e.name}.codes" if e.weight is not None else e.name for e in quantized}
    sizes = {name: e["data_offsets"][1] - e["data_offsets"][0] for name, e in header.items()}
    packed = sum(size for name, size in sizes.items() if name in weights)
    floats = sum(sizes.values()) - packed
    halves = sum(sizes[name] for name, e in header.items() if e["dtype"] == "F16")
    return Wire(packed, floats, len(data) - packed - floats, len(data) + halves)


@dataclass(frozen=True)
class MeasuredStep:
    """One training step at some bits.

    Args:
        images: batch that was measured.
        memory: bytes seen: of tensors, by saved-tensor hooks, of gradients, of optimiser state (no workspace).
        fixed_seconds: time of a step that does not depend on the batch: the update, unpacking weights.
        image_seconds: time per image, augmentation included.
    """

    images: int
    memory: Memory
    fixed_seconds: float
    image_seconds: float

    def seconds(self, images: int) -> float:
        """``fixed + images * per image``; exact at the measured batch, scaled elsewhere."""
        return self.fixed_seconds + images * self.image_seconds


@dataclass(frozen=True, eq=False)
class Bitwidth:
    """The training of one network in one bitwidth.

    Args:
        bits: s, or 32.
        task: what is trained.
        wire: the initial model's container, which the server sends.
        upload: bytes that a client sends.
        trace: the layers' shapes and bits.
        rule: what a client keeps per weight (``lowbit.rule``).
        keeps: what it keeps of the model that it received (``Algorithm.keeps``).
        measured: one step on this machine, or None.
    """

    bits: int
    task: Task
    wire: Wire
    upload: int
    trace: Trace
    rule: str = "stored"
    keeps: str = ""
    measured: MeasuredStep | None = None

    def operations(self, images: int) -> BitOperations:
        """Bit operations of a step on ``images`` images, by formula."""
        views = images * VIEWS
        objective = _objective(self.task, views, self.trace.outputs)
        return step_operations(self.trace, views, objective, self.task.has_target)

    def memory(self, images: int) -> Memory:
        """Memory of a step on ``images`` images, by formula."""
        views = images * VIEWS
        objective = _objective(self.task, views, self.trace.outputs)
        return step_memory(self.trace, views, self.rule, self.keeps, objective, self.task.has_target)

    def training(self, images: int, steps: int) -> BitOperations:
        """Bit operations of so many steps over ``images`` images."""
        return self.operations(self.task.batch(images)) * steps

    def forward(self, images: int) -> int:
        """Bit operations of a forward pass over one view of each of ``images`` images."""
        return step_operations(self.trace, images, _objective(self.task, VIEWS, self.trace.outputs)).forward

    def training_seconds(self, images: int, steps: float) -> float:
        """Time of so many steps on this machine, from the measured one."""
        if self.measured is None:
            raise ValueError("the ledger has no measured steps; create it with, for example, measure_seconds=20")
        return steps * self.measured.seconds(self.task.batch(images))


def _loss(task: Task, outputs: Tensor) -> Tensor:
    """The task's loss; a supervised loss costs the same for any labels."""
    return task.loss(outputs, torch.zeros(len(outputs) // VIEWS, dtype=torch.int64, device=outputs.device))


@functools.lru_cache(maxsize=256)
def _objective(task: Task, views: int, outputs: int) -> ObjectiveCost:
    return objective_cost(functools.partial(_loss, task), views, outputs)


def study(
    config: RunConfig,
    sizes: Sizes,
    bits: int,
    *,
    measure_seconds: float | None = None,
    say: Say = silent,
    warm: bool = True,
) -> Bitwidth:
    """Convert the network to ``bits``, pack it, trace it, and time a step if ``measure_seconds`` allows some.

    ``warm``: run an untimed step first, for work that a process does only once.
    """

    def tell(line: str) -> None:
        say(f"{bits} bits: {line}")

    tell("converting the network")
    algorithm = get_algorithm(config.algorithm)
    task = make_task(config, sizes.image[0], sizes.classes)
    model = task.converted(bits)
    side = task.views.size or sizes.image[1]
    buffer, layers = wire(model), trace(model, (sizes.image[0], side, side))
    sent = buffer.total if algorithm.upload is None else len(algorithm.upload(model, bits))
    measured = None
    if measure_seconds:
        how = config.lowbit.rule, algorithm.keeps, resolve(config.device)
        stepper = _Stepper(model, task, sizes.image, *how)
        measured = _measure(stepper, measure_seconds, tell, warm)
    return Bitwidth(bits, task, buffer, sent, layers, config.lowbit.rule, algorithm.keeps, measured)


class _Stepper:
    """Training steps of a model on random images on a device, with a clock; they train it a little."""

    def __init__(
        self,
        model: fx.GraphModule,
        task: Task,
        image: tuple[int, int, int],
        rule: str,
        keeps: str,
        device: torch.device,
    ) -> None:
        self.model, self.task, self.image, self.device = model.to(device).train(), task, image, device
        self.opt = LowBitSGD(model, 1e-3, rule=rule, proximal=0.01 if keeps == "proximal" else 0.0)  # type: ignore[arg-type]
        self.received = to_bytes(model) if keeps == "update" else b""
        self.target = TargetNetwork(model, task.momentum) if task.has_target else None
        self.draws = torch.Generator().manual_seed(0)
        self.saved = self.gradients = 0
        # CPU seconds of one thread, so that other work on the machine does not count
        on_one_core = device.type == "cpu" and torch.get_num_threads() == 1
        self.timer = time.process_time if on_one_core else time.perf_counter

    def clock(self) -> float:
        """Seconds, when everything that was asked for is done."""
        synchronize(self.device)
        return self.timer()

    def own(self) -> list[Tensor]:
        """The model's parameters and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    def passes(self, images: int) -> float:
        """Seconds of views, forward pass, loss and backward pass."""
        pixels = torch.randint(0, 256, (images, *self.image), dtype=torch.uint8, generator=self.draws)
        pixels = put(pixels, self.device)
        self.opt.zero_grad()
        began = self.clock()
        views = self.task.two_views(pixels, self.draws)
        loss, self.saved = saved_bytes(lambda: self._loss(views), self.own())
        torch.autograd.backward(loss)
        passed = self.clock() - began
        packed = (m.gradient for m in self.model.modules() if isinstance(m, LowBitWeight))
        self.gradients = sum(gradient.nbytes for gradient in packed if gradient is not None)
        self.gradients += sum(4 * p.grad.numel() for p in self.model.parameters() if p.grad is not None)
        return passed

    def _loss(self, views: Tensor) -> Tensor:
        outputs: Tensor = self.model(views)
        if self.target is not None:
            outputs = self.task.against_target(outputs, self.target(views))
        return _loss(self.task, outputs)

    def update(self) -> float:
        """Seconds of the optimiser's step, and of the target network's."""
        began = self.clock()
        self.opt.step()
        if self.target is not None:
            self.target.follow(self.model, self.opt.generator)
        return self.clock() - began

    def memory(self) -> Memory:
        """Bytes that the last step held."""
        held = sum(t.numel() * t.element_size() for t in self.own())
        besides = len(self.received) + (0 if self.target is None else self.target.nbytes)
        return Memory(held, self.saved, self.gradients, self.opt.state_bytes() + besides)


def _measure(stepper: _Stepper, budget: float, say: Say, warm: bool) -> MeasuredStep:
    """Run a few training steps of a converted model and record time and bytes.

    A first step of two images predicts how many ``budget`` seconds allow, up to a full batch. If the full batch is too slow, time
    is extrapolated: ``t(n) = fixed + n * per image`` through the two timed sizes. Each size is timed from cold (primitives that
    oneDNN makes for a new shape cancel in the slope).
    """
    full = stepper.task.batch_size
    small = min(SMALL, full)
    if warm:
        say("warming up")
        stepper.passes(small)
    began = time.perf_counter()
    small_seconds = stepper.passes(small)
    left = budget - (time.perf_counter() - began)
    images = min(full, max(int(small * left / max(small_seconds, 1e-9)), FLOOR))
    say(f"timing a step of {images} images")
    times = [stepper.passes(images)]
    update = stepper.update()
    while sum(times) < CHEAP and len(times) < 5:
        times.append(stepper.passes(images))
        update = min(update, stepper.update())
    large_seconds = statistics.median(times)
    slope = (large_seconds - small_seconds) / (images - small) if images > small else 0.0
    if slope <= 0:  # a hiccup in the small step, or one size only
        slope = large_seconds / images
    return MeasuredStep(images, stepper.memory(), max(large_seconds - slope * images, 0.0) + update, slope)


__all__ = ["Bitwidth", "MeasuredStep", "Say", "Wire", "silent", "study", "wire"]
