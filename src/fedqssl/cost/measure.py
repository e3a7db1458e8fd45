"""Measurements that stand beside the formulas: bytes that a real step holds, and the time it takes on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from fedqssl.cost.amounts import Memory
from fedqssl.cost.step import kept
from fedqssl.cost.training import Training
from fedqssl.lowbit import LowBitSGD, LowBitWeight, to_bytes

Say = Callable[[str], None]

SMALL = 2
"""Images of the first timed step; a second size gives the cost per image."""
FLOOR = 10
"""Images of the second, at least, whatever the budget: closer sizes give no slope worth having."""
CHEAP = 0.5
"""Seconds up to which a step is repeated, for a median."""


def clock(threads: int) -> float:
    """Seconds of CPU for one thread, so that other work on the machine does not count; of the wall clock for more."""
    return time.process_time() if threads == 1 else time.perf_counter()


def silent(line: str) -> None:
    """Say nothing."""


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


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The loss, and the bytes that its forward pass keeps for backward: each storage once, no parameters or buffers.

    The same hooks as in ``fedqssl bench memory``.
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss = forward()
    return loss, sum(kept.values())


def _gradients(model: nn.Module) -> int:
    """Bytes of all gradients between backward pass and update."""
    packed = [m.gradient.nbytes for m in model.modules() if isinstance(m, LowBitWeight) and m.gradient is not None]
    floats = [4 * p.grad.numel() for p in model.parameters() if p.grad is not None]
    return sum(packed) + sum(floats)


def _held(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


class _Stepper:
    """Forward and backward passes of a model on random images, with a clock."""

    def __init__(self, model: fx.GraphModule, training: Training, rule: str) -> None:
        self.model, self.training = model.train(), training
        kind, copies = kept(rule)
        self.opt = LowBitSGD(model, 1e-3, rule=kind, proximal=0.01 if copies == "proximal" else 0.0)  # type: ignore[arg-type]
        self.received = to_bytes(model) if copies == "update" else b""
        self.draws = torch.Generator().manual_seed(0)
        self.saved = self.gradients = 0
        self.threads = torch.get_num_threads()

    def passes(self, images: int) -> float:
        """Seconds of views, forward pass, loss and backward pass."""
        pixels = torch.randint(0, 256, (images, *self.training.image), dtype=torch.uint8, generator=self.draws)
        self.opt.zero_grad()
        began = clock(self.threads)
        views = self.training.make_views(pixels, self.draws)
        loss, self.saved = saved_bytes(self.model, lambda: self.training.loss(self.model(views)))
        torch.autograd.backward(loss)
        passed = clock(self.threads) - began
        self.gradients = _gradients(self.model)
        return passed

    def update(self) -> float:
        """Seconds of the optimiser's step."""
        began = clock(self.threads)
        self.opt.step()
        return clock(self.threads) - began


def measure_step(
    model: fx.GraphModule,
    training: Training,
    rule: str = "stored",
    budget: float = 4.0,
    say: Say = silent,
    warm: bool = True,
) -> MeasuredStep:
    """Run a few training steps of a converted model and note time and bytes.

    A first step of two images predicts how many ``budget`` seconds allow, up to a full batch. If the full batch is too dear, time
    is extrapolated: ``t(n) = fixed + n * per image`` through the two timed sizes. Each size is timed from cold (primitives that
    oneDNN makes for a new shape cancel in the slope). The model is trained a little by this.
    """
    stepper = _Stepper(model, training, rule)
    small = min(SMALL, training.batch_size)
    if warm:
        say("warming up")
        stepper.passes(small)
    began = time.perf_counter()
    small_seconds = stepper.passes(small)
    left = budget - (time.perf_counter() - began)
    images = min(training.batch_size, max(int(small * left / max(small_seconds, 1e-9)), FLOOR))
    say(f"timing a step of {images} images")
    times = [stepper.passes(images)]
    update = stepper.update()
    while sum(times) < CHEAP and len(times) < 5:
        times.append(stepper.passes(images))
        update = min(update, stepper.update())
    large_seconds = statistics.median(times)
    memory = Memory(_held(model), stepper.saved, stepper.gradients, stepper.opt.state_bytes() + len(stepper.received))
    slope = (large_seconds - small_seconds) / (images - small) if images > small else 0.0
    if slope <= 0:  # a hiccup in the small step, or one size only
        slope = large_seconds / images
    return MeasuredStep(images, memory, max(large_seconds - slope * images, 0.0) + update, slope)


__all__ = ["MeasuredStep", "measure_step", "saved_bytes"]
