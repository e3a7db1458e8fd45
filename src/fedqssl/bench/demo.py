"""The job of ``make run``: self-supervised training in fp32 and in 8, 6 and 4 bits, side by side, offline.

``python -m fedqssl.bench.demo`` draws a small image set, trains a narrow ResNet-18 on it with SimCLR once per
bitwidth, probes the features and writes a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedqssl.bench.memory import saved_bytes
from fedqssl.bench.peers import TrainingStep, Variant, backbone, build
from fedqssl.data.procedural import CLASSES, shapes
from fedqssl.evaluation import extract_features, linear_probe
from fedqssl.ssl.views import ViewConfig, two_views

VIEWS = ViewConfig(scale=(0.4, 1.0), hue=0.5, grayscale_p=0.4)  # colour says nothing about the class of a shape
COLUMNS = ("bits", "loss, first epoch", "last epoch", "saved for backward", "linear probe", "seconds")


@dataclass(frozen=True)
class Settings:
    """What the demo trains; the defaults take about two minutes on two cores."""

    width: int = 8
    images: int = 1024
    batch_size: int = 128
    epochs: int = 6
    lr: float = 0.3
    bits: tuple[int, ...] = (32, 8, 6, 4)
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one bitwidth reached."""

    bits: int
    losses: tuple[float, ...]
    saved_bytes: int
    accuracy: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """The table's row, in the order of ``COLUMNS``."""
        return (
            "fp32" if self.bits == 32 else str(self.bits),
            f"{self.losses[0]:.3f}",
            f"{self.losses[-1]:.3f}",
            f"{self.saved_bytes / 2**20:.1f} MiB",
            f"{self.accuracy:.1%}",
            f"{self.seconds:.0f}",
        )


class Features(nn.Module):
    """The encoder within a trained model, fp32 or converted: what its pooling layer returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to features (N, d)."""
        pooled: list[Tensor] = []
        pool = self.model.get_submodule("0.pool")
        handle = pool.register_forward_hook(lambda module, inputs, output: pooled.append(output))
        try:
            self.model(x)
        finally:
            handle.remove()
        return pooled[0].flatten(1)


def probe(encoder: nn.Module, settings: Settings) -> float:
    """Linear-probe accuracy of an encoder's features on images it has not seen."""
    train_x, train_y = shapes(settings.images, settings.seed)
    test_x, test_y = shapes(settings.images, settings.seed + 1)
    features = [extract_features(encoder, images) for images in (train_x, test_x)]
    return linear_probe(features[0], train_y, features[1], test_y, len(CLASSES)).accuracy


def epoch_batches(images: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Two views of every full batch of a random order."""
    order = torch.randperm(len(images), generator=generator)
    for rows in torch.split(order, batch_size):
        if len(rows) == batch_size:
            yield two_views(images[rows], generator, VIEWS)


def train(bits: int, settings: Settings, say: Callable[[str], None]) -> Outcome:
    """Train one bitwidth (32 is fp32) from the same weights, on the same views, as all the others."""
    start = time.perf_counter()
    variant = Variant("fp32", 32) if bits == 32 else Variant("fedqssl", bits)
    images, _ = shapes(settings.images, settings.seed)
    model, optimizer = build(variant, settings.width, settings.lr)
    generator = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    saved = 0
    for epoch in range(settings.epochs):
        values = []
        for views in epoch_batches(images, settings.batch_size, generator):
            if not saved:  # on a network apart: the extra forward pass would move batch norm's statistics
                saved = saved_bytes(TrainingStep(*build(variant, settings.width, settings.lr), views))
            values.append(float(TrainingStep(model, optimizer, views)()))
        losses.append(sum(values) / len(values))
        say(f"{variant.name:>10}  epoch {epoch + 1}/{settings.epochs}  loss {losses[-1]:.3f}")
    return Outcome(bits, tuple(losses), saved, probe(Features(model), settings), time.perf_counter() - start)


def report(settings: Settings, random_accuracy: float, outcomes: Sequence[Outcome]) -> str:
    """The run as Markdown."""
    lines = [
        "# fedqssl demo",
        "",
        "SimCLR on drawn shapes, one ResNet-18 per bitwidth, same start, same views.",
        "",
    ]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(outcome.cells()) + " |" for outcome in outcomes]
    lines += [
        "",
        f"Untrained fp32 network: {random_accuracy:.1%}; chance: {1 / len(CLASSES):.1%}. One seed.",
        "",
    ]
    lines += ["## Loss per epoch", ""]
    lines += [f"* {o.cells()[0]}: {', '.join(f'{loss:.3f}' for loss in o.losses)}" for o in outcomes]
    lines += ["", "## Settings", ""]
    lines += [f"* {key}: {value}" for key, value in asdict(settings).items()]
    return "\n".join(lines) + "\n"


def write_new(folder: Path, text: str) -> Path:
    """Write ``report.md``, or ``report-2.md``, ... : the first name that is free."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / ("report.md" if number == 1 else f"report-{number}.md")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            number += 1


def main(settings: Settings | None = None, folder: Path = Path("runs/demo")) -> Path:
    """Train, print the table and return the path of the report."""
    settings = settings or Settings()
    console = Console()
    random_accuracy = probe(backbone(settings.width)[0], settings)
    outcomes = [train(bits, settings, lambda line: console.print(line, highlight=False)) for bits in settings.bits]
    table = Table(*COLUMNS, title="SimCLR on drawn shapes, by bits")
    for outcome in outcomes:
        table.add_row(*outcome.cells())
    console.print(table)
    console.print(f"untrained fp32 network: {random_accuracy:.1%}; one seed", highlight=False)
    path = write_new(folder, report(settings, random_accuracy, outcomes))
    console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return path


if __name__ == "__main__":
    main()
