"""``fedqssl bench``: measure, print a table, write ``--json``."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedqssl.cli.arguments import parse_bit_range, split_words

if TYPE_CHECKING:
    from fedqssl.studies.bench.records import Record


def _writable(path: Path | None) -> Path | None:
    """Fail before minutes of measuring rather than after."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ValueError(f"--json needs a file, but {path} is a folder")
    return path


app = typer.Typer(help="Measure speed and memory against fp32 and peers.", no_args_is_help=True)

Bits = Annotated[str, typer.Option(help="Our bitwidths: a list like 2,4,8 or a range like 2..12.")]
Images = Annotated[int, typer.Option(min=1, help="Images in the batch; each gives two views.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", callback=_writable, help="Also write the results to this file.")
]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Measure Brevitas and torch.ao QAT too.")]
Repeats = Annotated[int, typer.Option(min=1, help="Number of interleaved repeats; medians are shown.")]
Threads = Annotated[int, typer.Option(min=1, help="Torch threads.")]
Width = Annotated[int, typer.Option(min=1, help="Channels of ResNet-18's first stage.")]
Model = Annotated[str, typer.Option(help="Backbone, as in `fedqssl list models`; peers know resnet18 only.")]
PlainImages = Annotated[int, typer.Option(min=1, help="Images in the batch.")]
InferencePeers = Annotated[bool, typer.Option("--peers/--no-peers", help="Measure torch.ao int8 and onnxruntime too.")]
Elements = Annotated[int, typer.Option(min=1, help="Floats to quantize and pack.")]
Device = Annotated[str, typer.Option(help="What to measure on: cpu, cuda, cuda:N or auto.")]
Size = Annotated[int, typer.Option(min=4, help="Image height and width.")]

BITS = "2,4,6,8,12"
THREADED = {"threads": (Threads, 1)}
PEERED = {"peers": (Peers, True), "device": (Device, "cpu")}
REPEATED = {"repeats": (Repeats, 7), **THREADED}
SMALL_FLEET = ("smoke", "clients=10", "bits=4,4,6,6,6,8,8,8,12,12", "workers=2")


BENCHES: dict[str, tuple[str, dict[str, tuple[Any, object]]]] = {
    "step": (
        "CPU time of a training step divided by that of fp32, interleaved (below 1 is faster than fp32).",
        {
            **{"model": (Model, "resnet18"), "width": (Width, 16), "images": (Images, 256), "size": (Size, 32)},
            **{"bits": (Bits, BITS), **REPEATED, **PEERED},
        },
    ),
    "memory": (
        "Memory of a training step of fp32 divided by ours, one process each (above 1 is smaller than fp32).",
        {"width": (Width, 16), "images": (Images, 256), "bits": (Bits, BITS), **THREADED, **PEERED},
    ),
    "inference": (
        "Images per second of a forward pass, beside fp32, torch.ao int8 and onnxruntime, interleaved (above 1 is faster).",
        {
            **{"width": (Width, 64), "images": (PlainImages, 32), "bits": (Bits, BITS), **REPEATED},
            "peers": (InferencePeers, True),
        },
    ),
    "codec": (
        "Speed of quantizing and packing relative to memcpy, and the error of the fast quantizer.",
        {"elements": (Elements, 4_000_000), **REPEATED},
    ),
    "views": (
        "Images per second of the two-view augmentation, compared with kornia.",
        {"images": (Images, 512), "size": (Size, 32), **REPEATED},
    ),
}
"""Benchmarks that take only options: the command's help, and its options with their defaults.

An option is an argument of the same name of the ``run`` in ``fedqssl.studies.bench.<name>``.
"""


def _add(name: str, text: str, options: dict[str, tuple[Any, object]]) -> None:
    """Make a command of a benchmark: typer reads its options from the signature that is built here."""

    def command(json: Path | None = None, **given: Any) -> None:
        if "bits" in given:
            given["bits"] = parse_bit_range(given["bits"])
        _show(import_module(f"fedqssl.studies.bench.{name}").run(**given), json)

    kinds = {**options, "json": (JsonFile, None)}
    parameters = [Parameter(key, Parameter.KEYWORD_ONLY, annotation=k, default=v) for key, (k, v) in kinds.items()]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {key: kind for key, (kind, _) in kinds.items()}
    app.command(name, help=text)(command)


for _name, (_text, _options) in BENCHES.items():
    _add(_name, _text, _options)


@app.command()
def engine(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="PRESET_OR_TOML KEY=VALUE", help="What to run; quickstart by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured.")] = 2,
    repeats: Repeats = 3,
    json: JsonFile = None,
) -> None:
    """CPU time of a round outside training, evaluation and packing; and the gain from a second worker."""
    from fedqssl.config import load_config
    from fedqssl.studies.bench import engine as bench

    _show(bench.run(load_config(*split_words(words or ())), rounds, repeats), json)


@app.command()
def flower(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="PRESET_OR_TOML KEY=VALUE", help="What to run; smoke by default.")
    ] = None,
    repeats: Repeats = 7,
    json: JsonFile = None,
) -> None:
    """Seconds that Flower's simulation on Ray adds to a round (extra: flower)."""
    from fedqssl.config import load_config
    from fedqssl.studies.bench import flower as bench

    _show(bench.run(load_config(*split_words(words or SMALL_FLEET)), repeats), json)


def _show(record: Record, json: Path | None) -> None:
    console = Console()
    settings = ", ".join(f"{key} {value}" for key, value in record.settings.items())
    table = Table(title=f"fedqssl bench {record.bench}", caption=settings)
    for column in record.results[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in record.results:
        table.add_row(*(_cell(column, value) for column, value in row.items()))
    console.print(table)
    for skipped in record.skipped:
        console.print(f"skipped {skipped.variant}: {skipped.reason}", markup=False, highlight=False)
    if json is not None:
        record.write(json)
        console.print(f"wrote {json}", markup=False, highlight=False)


def _cell(column: str, value: str | int | float | None) -> str:
    if value is None:
        return ""
    if column.endswith("_bytes"):
        return f"{float(value) / 2**20:,.1f} MiB"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


@app.command()
def learning(
    data: Annotated[Path, typer.Option(help="Folder with train-*.parquet (Hugging Face layout).")],
    test: Annotated[Path | None, typer.Option(help="Folder with test-*.parquet; by default the same.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for one JSON file per cell; finished cells are skipped.")] = Path(
        "runs/learning"
    ),
    bits: Annotated[str, typer.Option(help="Bitwidths; 32 is plain fp32, 0 the untrained network.")] = "0,32,8,6,4",
    seeds: Annotated[str, typer.Option(help="Seeds; cells of one seed are paired.")] = "0,1,2",
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a batch; each gives two views.")] = 256,
    lr: Annotated[float, typer.Option(min=0)] = 1.6,
    width: Width = 16,
    threads: Threads = 1,
    model: Annotated[str, typer.Option(help="Backbone (fedqssl list models).")] = "resnet18",
    features: Annotated[str, typer.Option(help="What the probe sees (fedqssl list features).")] = "pooled",
    views_size: Annotated[int | None, typer.Option(min=8, help="Side of the views; by default the images'.")] = None,
    rule: Annotated[str, typer.Option(help="What low-bit weights keep: stored, residual or latent.")] = "stored",
    gradient_centres: Annotated[str, typer.Option(help="Of quantized gradients: quantile or mean.")] = "quantile",
) -> None:
    """SimCLR at several bitwidths, paired by seed with fp32: linear-probe accuracy on the whole test set."""
    from fedqssl.data.parquet import read_parquet
    from fedqssl.lowbit import LowBitOptions
    from fedqssl.studies.bench import learning as job

    try:
        cells = [(int(b), int(s)) for s in seeds.split(",") for b in bits.split(",")]
    except ValueError:
        raise ValueError("--bits and --seeds take whole numbers separated by commas, like 0,32,4") from None
    images, tests = read_parquet(data, "train"), read_parquet(test or data, "test")
    given = {"model": model, "features": features, "views_size": views_size, "rule": rule}
    recipe = job.Recipe(width=width, epochs=epochs, batch_size=batch_size, lr=lr, **given)  # type: ignore[arg-type]
    options = LowBitOptions(gradient_centres=gradient_centres)  # type: ignore[arg-type]
    results = job.run_cells(cells, images, tests, out, recipe, options, typer.echo, threads)
    table = Table("bits", "seeds", "accuracy, %", "minus fp32, points")
    for row in job.summary(results):
        table.add_row(*row)
    Console().print(table)


@app.command()
def classifier(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs; only read.")],
    splits: Annotated[int, typer.Option(min=1, help="Splits of each client's images; the first is the run's own.")] = 5,
    draws: Annotated[int, typer.Option(min=1, help="Draws of 1 to 5 labels per class.")] = 10,
    json: JsonFile = None,
) -> None:
    """Accuracy of devices' classifiers beside scikit-learn's, kNN and class means, on the features of runs (extra: data)."""
    from fedqssl.studies.bench import classifier as bench

    _show(bench.run(runs, splits, draws, typer.echo), json)


@app.command()
def simulation(
    iterations: Annotated[
        int, typer.Option(min=1, help="Measured iterations of 50 users, after one that is not.")
    ] = 30,
    repeats: Repeats = 1,
    processes: Annotated[str, typer.Option(help="Numbers of processes, like 1,2.")] = "1,2",
    data: Annotated[str, typer.Option(help="Whose images the users hold, 50 each (fedqssl list datasets).")] = "scenes",
    data_dir: Annotated[Path | None, typer.Option(help="Where these images are.")] = None,
    pfl: Annotated[
        Path | None, typer.Option(help="Virtual environment of pfl-research; made if there is none.")
    ] = None,
    only: Annotated[str, typer.Option(help="Names of candidates, separated by semicolons; by default all.")] = "",
    json: JsonFile = None,
) -> None:
    """Client updates per second on pfl-research's CIFAR-10 workload, beside pfl, Flower on Ray and a bare loop.

    For example: fedqssl bench simulation --pfl ~/pfl-env --json simulation.json
    """
    from fedqssl.studies.bench import simulation as bench

    if not all(part.isdecimal() and int(part) for part in processes.split(",")):
        raise ValueError("--processes takes whole numbers separated by commas, like 1,2")
    counts, names = [int(part) for part in processes.split(",")], [n.strip() for n in only.split(";") if n.strip()]
    _show(bench.run(iterations, repeats, counts, data, data_dir, pfl, names, typer.echo), json)


@app.command()
def fleet(
    clients: Annotated[str, typer.Option(help="Sizes of fleets, like 100,10000.")] = "100,10000",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of 50 clients; the first does not count.")] = 4,
    repeats: Repeats = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes of the run whose memory is measured.")] = 2,
    json: JsonFile = None,
) -> None:
    """A round's fixed cost, with all but the training steps, and the memory of a whole run, for fleets of several sizes."""
    from fedqssl.studies.bench import fleet as bench

    if not all(part.isdecimal() for part in clients.split(",")):
        raise ValueError("--clients takes whole numbers separated by commas, like 100,10000")
    _show(bench.run([int(part) for part in clients.split(",")], rounds, repeats, workers, typer.echo), json)


@app.command()
def imports(repeats: Repeats = 7, json: JsonFile = None) -> None:
    """Seconds to import the device runtime in a fresh process, and to import torch alone."""
    from fedqssl.studies.bench import imports as bench

    _show(bench.run(repeats), json)


@app.command()
def serve(
    file: Annotated[Path, typer.Argument(help="A device file (fedqssl export).")],
    requests: Annotated[int, typer.Option(min=20, help="Requests to each service, in turns.")] = 300,
    json: JsonFile = None,
) -> None:
    """Milliseconds of a request to fedqssl serve, beside a plain FastAPI service with fp32 torch (extra: serve)."""
    from fedqssl.serve.running import check_serve
    from fedqssl.studies.bench import serve as bench

    check_serve()
    _show(bench.run(file, requests), json)


@app.command()
def c(
    file: Annotated[Path, typer.Argument(help="A device file of 1 to 8 bits (fedqssl export).")],
    repeats: Repeats = 7,
    calls: Annotated[int, typer.Option(min=1, help="Images per repeat.")] = 500,
    json: JsonFile = None,
) -> None:
    """A device file as C: time per image beside onnxruntime in fp32; flash, RAM and instructions on Cortex-M."""
    from fedqssl.studies.bench import c as bench

    _show(bench.run(file, repeats, calls), json)
