"""Does low-bit training learn? SimCLR on real images at several bitwidths, paired by seed with plain fp32.

Every cell (bits, seed) starts from the same float weights, sees the same images in the same order through the same views, and
ends in one JSON file; existing cells are skipped, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedqssl.data.parquet import ImageSet
from fedqssl.evaluation.classifier import logistic_accuracy
from fedqssl.evaluation.features import extract_features
from fedqssl.evaluation.probe import linear_probe
from fedqssl.files import write_atomically
from fedqssl.lowbit import LowBitOptions, LowBitSGD, Precision, to_lowbit
from fedqssl.lowbit.optim import Rule
from fedqssl.models import projector
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model
from fedqssl.ssl.simclr import nt_xent
from fedqssl.ssl.views import ViewConfig, two_views

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """How a cell trains: the same for all bitwidths."""

    width: int
    epochs: int = 15
    batch_size: int = 256
    lr: float = 1.6
    """The learning rate after ``warmup_epochs``; half a cosine brings it to zero."""
    temperature: float = 0.5
    warmup_epochs: int = 1
    model: str = "resnet18"
    features: str = "pooled"
    views_size: int | None = None
    """Side of the views; by default that of the images."""
    rule: Rule = "stored"
    """What low-bit weights keep between steps."""

    def since_then(self, bits: int) -> dict[str, object]:
        """As a cell of so many bits has it: without newer settings at their defaults, and without those of low bits in floats."""
        floats = ("rule",) if bits in (0, 32) else ()
        return {k: v for k, v in asdict(self).items() if k not in _NEWER or (v != _NEWER[k] and k not in floats)}


_NEWER: dict[str, object] = {"model": "resnet18", "features": "pooled", "views_size": None, "rule": "stored"}


@dataclass(frozen=True)
class LearningCell:
    """One result: linear-probe accuracy on the test set; ``bits`` 0 is the untrained network, 32 plain fp32."""

    bits: int
    seed: int
    accuracy: float
    loss: float
    cpu_seconds: float
    recipe: dict[str, object]
    options: dict[str, object]


def _rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then half a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def build(bits: int, recipe: Recipe, options: LowBitOptions, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The encoder with projector and its optimiser; 32 bits is plain torch in channels_last."""
    torch.manual_seed(seed)
    encoder = build_model(recipe.model, recipe.width)
    model: nn.Module = SelfSupervisedNetwork(encoder, projector(int(encoder.feature_dim)))  # type: ignore[arg-type]
    if bits == 32:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, torch.optim.SGD(model.parameters(), lr=recipe.lr)
    model = to_lowbit(model, Precision.for_bits(bits), options)
    return model, LowBitSGD(model, lr=recipe.lr, rule=recipe.rule, seed=seed)


def train_cell(
    bits: int,
    seed: int,
    train: ImageSet,
    test: ImageSet,
    recipe: Recipe,
    options: LowBitOptions,
    progress: Say,
) -> LearningCell:
    """Train one model (``bits`` 0: do not train) and probe it on the whole test set."""
    started = time.process_time()
    model, opt = build(32 if bits == 0 else bits, recipe, options, seed)
    epochs = 0 if bits == 0 else recipe.epochs
    generator = torch.Generator().manual_seed(1000 + seed)
    views = ViewConfig(size=recipe.views_size)
    per_epoch = len(train.images) // recipe.batch_size
    steps = epochs * per_epoch
    mean = math.nan
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(train.images), generator=generator)
        total = 0.0
        for i in range(per_epoch):
            batch = train.images[order[i * recipe.batch_size : (i + 1) * recipe.batch_size]]
            for group in opt.param_groups:
                group["lr"] = recipe.lr * _rate(epoch * per_epoch + i, steps, recipe.warmup_epochs * per_epoch)
            opt.zero_grad()
            loss = nt_xent(model(two_views(batch, generator, views)), recipe.temperature)
            torch.autograd.backward(loss)
            opt.step()
            total += float(loss.detach())
        mean = total / per_epoch
        spent = time.process_time() - started
        progress(f"bits {bits} seed {seed} epoch {epoch + 1}/{epochs} loss {mean:.4f} cpu {spent:.0f} s")
    assert train.labels is not None and test.labels is not None
    classes = max(int(train.labels.max()), int(test.labels.max())) + 1
    spent = time.process_time() - started
    encoder = features_of(model, recipe.features)
    features = extract_features(encoder, train.images), extract_features(encoder, test.images)
    probe = logistic_accuracy if recipe.features != "pooled" else _fixed_probe
    accuracy = probe(features[0], train.labels, features[1], test.labels, classes)
    progress(f"bits {bits} seed {seed} accuracy {100 * accuracy:.2f}")
    return LearningCell(bits, seed, accuracy, mean, spent, recipe.since_then(bits), asdict(options))


def _fixed_probe(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor, classes: int) -> float:
    """The probe that cells with pooled features have always had: short features need no choice of weight decay."""
    return linear_probe(x, y, test_x, test_y, classes).accuracy


def run_cells(
    cells: list[tuple[int, int]],
    train: ImageSet,
    test: ImageSet,
    out: Path,
    recipe: Recipe,
    options: LowBitOptions,
    progress: Say,
    threads: int = 1,
) -> list[LearningCell]:
    """Train every (bits, seed) without a file in ``out``; returns all cells."""
    if train.labels is None or test.labels is None:
        raise ValueError("a linear probe needs labels in both the training and the test set")
    out.mkdir(parents=True, exist_ok=True)
    results = []
    torch.set_num_threads(threads)
    for bits, seed in cells:
        path = out / f"bits{bits:02d}-seed{seed}.json"
        if not path.exists():
            cell = train_cell(bits, seed, train, test, recipe, options, progress)
            write_atomically(path, (json.dumps(asdict(cell), indent=1) + "\n").encode())
        cell = LearningCell(**json.loads(path.read_text()))
        if cell.recipe != recipe.since_then(bits):
            raise ValueError(f"{path} was created with another recipe ({cell.recipe}); choose another --out")
        results.append(cell)
    return results


def summary(cells: list[LearningCell]) -> list[tuple[str, str, str, str]]:
    """Rows of (bits, seeds, mean accuracy, mean difference to fp32 of the same seed with its standard error)."""
    fp32 = {c.seed: c.accuracy for c in cells if c.bits == 32}
    rows = []
    for bits in sorted({c.bits for c in cells}):
        mine = {c.seed: c.accuracy for c in cells if c.bits == bits}
        mean = 100 * statistics.fmean(mine.values())
        gaps = [100 * (a - fp32[s]) for s, a in mine.items() if s in fp32]
        gap = f"{statistics.fmean(gaps):+.2f}" if gaps and bits != 32 else "-"
        if len(gaps) > 1 and bits != 32:
            gap += f" ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.2f}"
        name = {0: "untrained", 32: "fp32"}.get(bits, str(bits))
        rows.append((name, str(len(mine)), f"{mean:.2f}", gap))
    return rows
