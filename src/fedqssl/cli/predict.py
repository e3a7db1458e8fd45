"""``fedqssl predict``: classify images with a device file."""

from __future__ import annotations

import csv
import json as jsons
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from fedqssl.files import printable

if TYPE_CHECKING:
    from fedqssl.device import DeviceModel

File = Annotated[Path, typer.Argument(metavar="FILE", help="A device file (fedqssl export).")]
Images = Annotated[list[Path], typer.Argument(metavar="IMAGES_OR_FOLDER", help="Image files of any size, or folders.")]
Top = Annotated[int, typer.Option(min=1, help="Number of classes to show for each image.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")]
Batch = Annotated[int, typer.Option(min=1, help="Batch size.")]
Skip = Annotated[
    bool, typer.Option("--skip-bad", help="Skip images that cannot be read, and list them on standard error.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Allow importing the file's own backbone (package.module:Class).")]


def predict(
    file: File,
    images: Images,
    top: Top = 3,
    json: AsJson = False,
    as_csv: AsCsv = False,
    batch_size: Batch = 64,
    skip_bad: Skip = False,
    trust: Trust = False,
) -> None:
    """Classify images, with probabilities.

    For example: fedqssl predict phone.fqssl photos/ --top 3 --csv
    """
    if json and as_csv:
        raise ValueError("choose --json or --csv, not both")
    from fedqssl.device import load
    from fedqssl.device.pictures import find_pictures

    paths = find_pictures(images)
    model = load(file, trust=trust)
    show = _json if json else _csv(min(top, len(model.manifest.class_names))) if as_csv else _plain
    if not json and not as_csv:
        _say_what_is_unknown(model)
    bad: list[str] = []
    for path, answer in _answers(model, paths, top, batch_size, bad if skip_bad else None):
        show(path, answer)
    for line in bad:
        print(f"skipped {printable(line)}", file=sys.stderr)
    if len(bad) == len(paths):
        raise ValueError(f"none of the {len(paths)} images could be read")


def _answers(
    model: DeviceModel, paths: list[Path], top: int, batch_size: int, bad: list[str] | None
) -> Iterator[tuple[Path, Any]]:
    """Each path with its prediction, a batch at a time, with a bar where standard error is a terminal."""
    import torch

    from fedqssl.data.images import DataError
    from fedqssl.data.pictures import one_picture

    console, m = Console(stderr=True), model.manifest
    starts = range(0, len(paths), batch_size)
    for start in track(starts, "predicting", console=console, transient=True, disable=not console.is_terminal):
        pixels, read = [], []
        for path in paths[start : start + batch_size]:
            try:
                pixels.append(one_picture(path, str(path), m.size, m.channels))
                read.append(path)
            except DataError as error:
                if bad is None:
                    raise ValueError(f"{error} (or skip such images with --skip-bad)") from error
                bad.append(str(error))
        if pixels:
            yield from zip(read, model.answers(model.probabilities(torch.stack(pixels)), top), strict=True)


def _say_what_is_unknown(model: DeviceModel) -> None:
    """Name the classes that a classifier has no labels of: its answers for them look like mistakes otherwise."""
    never, names = model.manifest.without_labels, model.manifest.class_names
    if never:
        which = ", ".join(never[:10]) + (", ..." if len(never) > 10 else "")
        seen = f"{model.manifest.client} has labels of {len(names) - len(never)} of {len(names)} classes"
        print(printable(f"note: {seen}, and none of {which}"), file=sys.stderr)


def _plain(path: Path, answer: Any) -> None:
    print(printable(str(path)), *(f"{printable(name)} {100 * p:.1f}%" for name, p in answer.top), sep="  ")


def _json(path: Path, answer: Any) -> None:
    print(jsons.dumps({"image": str(path), "top": [{"name": n, "probability": p} for n, p in answer.top]}))


def _csv(top: int) -> Any:
    writer = csv.writer(sys.stdout)
    writer.writerow(["image", *(f"{word}_{i}" for i in range(1, top + 1) for word in ("class", "probability"))])
    return lambda path, answer: writer.writerow(
        [printable(str(path)), *(x for n, p in answer.top for x in (printable(n), f"{p:.6f}"))]
    )
