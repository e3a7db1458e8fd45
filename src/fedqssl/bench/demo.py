"""The job of ``make run``: self-supervised training in fp32 and in 8, 6 and 4 bits, side by side, offline.

``python -m fedqssl.bench.demo`` draws a small image set, trains a narrow ResNet-18 on it with SimCLR once per bitwidth
(:mod:`fedqssl.bench.learning`), probes the features and writes a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fedqssl.bench.learning import Recipe, build, train_cell
from fedqssl.bench.memory import saved_bytes
from fedqssl.bench.peers import TrainingStep
from fedqssl.data.parquet import ImageSet
from fedqssl.data.procedural import CLASSES, shapes
from fedqssl.lowbit import LowBitOptions, to_bytes
from fedqssl.ssl.views import ViewConfig

VIEWS = ViewConfig(scale=(0.4, 1.0), hue=0.5, grayscale_p=0.4)  # colour says nothing about the class of a shape
COLUMNS = ("bits", "last loss", "saved for backward", "model bytes", "linear probe", "seconds")


@dataclass(frozen=True)
class Settings:
    """What the demo trains; the defaults take about two minutes on two cores."""

    images: int = 1024
    recipe: Recipe = field(default_factory=lambda: Recipe(width=8, epochs=9))
    bits: tuple[int, ...] = (0, 32, 8, 4)
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one bitwidth reached; bits 0 is the untrained network."""

    bits: int
    loss: float
    saved_bytes: int
    model_bytes: int
    accuracy: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """The table's row, in the order of ``COLUMNS``."""
        name = {0: "untrained", 32: "fp32"}.get(self.bits, str(self.bits))
        trained = self.bits != 0
        return (
            name,
            f"{self.loss:.3f}" if trained else "-",
            f"{self.saved_bytes / 2**20:.1f} MiB" if trained else "-",
            f"{self.model_bytes / 2**10:.0f} KiB",
            f"{self.accuracy:.1%}",
            f"{self.seconds:.0f}",
        )


def image_set(count: int, seed: int) -> ImageSet:
    """Drawn shapes as an :class:`ImageSet`."""
    images, labels = shapes(count, seed)
    return ImageSet(images, labels, CLASSES)


def train(bits: int, settings: Settings, say: Callable[[str], None]) -> Outcome:
    """Train one bitwidth from the same weights, on the same views, as all the others, and probe it on new images."""
    start = time.perf_counter()
    recipe, options = settings.recipe, LowBitOptions()
    data = image_set(settings.images, settings.seed), image_set(settings.images, settings.seed + 1)
    cell = train_cell(bits, settings.seed, *data, recipe, options, say, VIEWS)
    model, opt = build(bits or 32, recipe, options, settings.seed)
    batch = torch.rand(2 * recipe.batch_size, 3, 32, 32)
    saved = saved_bytes(TrainingStep(model, opt, batch))
    if bits in (0, 32):
        size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    else:
        size = len(to_bytes(model))
    return Outcome(bits, cell.loss, saved, size, cell.accuracy, time.perf_counter() - start)


def report(settings: Settings, outcomes: Sequence[Outcome]) -> str:
    """The run as Markdown."""
    lines = ["# fedqssl demo", "", "SimCLR on drawn shapes, one ResNet-18 per bitwidth, same start, same views.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(outcome.cells()) + " |" for outcome in outcomes]
    lines += ["", f"Chance is {1 / len(CLASSES):.1%}. One seed: differences of a few points are noise.", ""]
    lines += ["## Settings", ""]
    lines += [f"* {key}: {value}" for key, value in asdict(settings).items()]
    return "\n".join(lines) + "\n"


def free_folder(parent: Path) -> Path:
    """``parent/demo``, or ``demo-2``, ``demo-3``, ... if it is taken; made."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / ("demo" if number == 1 else f"demo-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def run(settings: Settings, parent: Path, say: Callable[[str], None]) -> tuple[list[Outcome], Path]:
    """Train every bitwidth; returns the outcomes and the report's path."""
    outcomes = [train(bits, settings, say) for bits in settings.bits]
    path = free_folder(parent) / "report.md"
    path.write_text(report(settings, outcomes))
    return outcomes, path


def main() -> None:
    """Run with the defaults; print progress, a table and the report's path."""
    console = Console()
    outcomes, path = run(Settings(), Path("runs"), lambda line: console.print(line, highlight=False))
    table = Table(*COLUMNS, title="Self-supervised training, fp32 and low-bit")
    for outcome in outcomes:
        table.add_row(*outcome.cells())
    console.print(table)
    console.print(f"Report: {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
