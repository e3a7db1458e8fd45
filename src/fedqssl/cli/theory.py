"""``fedqssl theory``: the paper's analysis as checks, and the representability of a finished run's encoders."""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedqssl.cli.arguments import parse_bit_range

if TYPE_CHECKING:
    from torch import Tensor


class Check(str, Enum):
    """What to check."""

    lemma1 = "lemma1"
    theorem1 = "theorem1"
    theorem2 = "theorem2"
    representability = "representability"
    all = "all"


IMAGES = 2000
"""Images per client to compute features of."""

Run = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Folder of a finished run, for representability.")]
Out = Annotated[Path, typer.Option(help="Folder for theory.json, summary.md and figures.")]


def theory(
    check: Annotated[Check, typer.Argument(help="What to check.")] = Check.all,
    run: Run = None,
    out: Out = Path("runs/theory"),
    dim: Annotated[int, typer.Option(help="Dimension d of the data.")] = 32,
    clients: Annotated[int, typer.Option(help="Clients n, with two classes each.")] = 4,
    rank: Annotated[int | None, typer.Option(help="Rank m; by default n (for encoders: --directions).")] = None,
    bits: Annotated[str, typer.Option(help="Bitwidths R: a range like 2..12 or a list like 2,4,8.")] = "2..12",
    rounds: Annotated[int, typer.Option(help="Rounds T of training.")] = 150,
    seeds: Annotated[int, typer.Option(help="Seeds; intervals are over them.")] = 4,
    directions: Annotated[int, typer.Option(help="Leading directions C of a run's features.")] = 8,
    centre: Annotated[bool, typer.Option("--centre", help="Subtract the mean of a run's features.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
) -> None:
    """Check the paper's analysis: Lemma 1, Corollary 1, Theorems 1 and 2; or a run's representability.

    For example: fedqssl theory all --out runs/theory, or fedqssl theory representability runs/demo --out runs/demo-r
    """
    if (check is Check.representability) != (run is not None):
        raise ValueError(
            "only representability takes a run's folder, and it needs one: fedqssl theory representability RUN"
        )
    from fedqssl.studies.theory import CHECKS, Settings, claim_folder, run_checks, write
    from fedqssl.studies.theory.representability import encoder_representability

    if run is not None:
        claim_folder(out, overwrite)
        found = encoder_representability(client_features(run), rank or directions, directions, centre)
        settings = {"run": str(run), "images_per_client": IMAGES}
        results = {"representability": found.to_json(), "settings": settings}
    else:
        sizes = Settings(dim, clients, rank, parse_bit_range(bits), rounds, seeds)
        names = list(CHECKS) if check is Check.all else [check.value]
        claim_folder(out, overwrite)
        began = time.perf_counter()
        results = run_checks(names, sizes, typer.echo, workers=min(2, os.cpu_count() or 1))
        typer.echo(f"measured in {time.perf_counter() - began:.0f} s")
    write(claim_folder(out, overwrite), results, typer.echo)
    _show(results)
    typer.echo(f"results are in {out}; start with {out / 'summary.md'}")


def client_features(folder: Path) -> dict[str, Tensor]:
    """Features of every client's own images under its own model, of a finished run."""
    if not (folder / "config.toml").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.toml; start one with fedqssl run --out {folder}")
    from fedqssl.config import load_run_config
    from fedqssl.evaluation import extract_features
    from fedqssl.federated.context import simulation_to_read
    from fedqssl.lowbit import load_bytes

    context = simulation_to_read(load_run_config(folder))
    found = {}
    for name in sorted(context.partition.clients):
        path = folder / "clients" / name / "model.fqssl"
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: the run is not finished; resume it with fedqssl run --resume {folder}"
            )
        bits = context.bits[name]
        model = context.task.converted(bits)
        load_bytes(model, path.read_bytes())
        images = context.train.images[context.partition.clients[name].train[:IMAGES]]
        found[f"{name} ({bits} bits)"] = extract_features(context.task.extractor(model, images.shape[-1]), images)
        typer.echo(f"features of {name}: {len(images)} images, {bits} bits")
    return found


def _show(results: dict[str, dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("part", "claim", "measured", "holds")
    for part, values in results.items():
        claims = values.get("claims")
        for name, claim in claims.items() if isinstance(claims, dict) else ():
            table.add_row(part, name, Text(str(claim["measured"])), "yes" if claim["holds"] else "[bold]no[/bold]")
    if table.row_count:
        Console().print(table)
    found = results.get("representability")
    if found is not None:
        typer.echo(
            f"smallest r {found['r_min']:.3f}, mean {found['r_mean']:.3f}, spread over clients {found['spread']:.3f}"
        )


__all__ = ["client_features", "theory"]
