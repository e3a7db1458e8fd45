"""The top and the end of a run's page: figures at a glance, warnings, protocol, files."""

from __future__ import annotations

import os
import time
from collections import Counter
from math import isfinite
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fedqssl.cost.units import bytes_text, ratio_text, seconds_text
from fedqssl.report.costs import Costs
from fedqssl.report.data import RunData
from fedqssl.report.learning_section import collapse_warnings
from fedqssl.report.theme import FULL, bits_words, counted, percent


def bits_summary(run: RunData) -> str:
    """``2 × 4, 3 × 6 bits``."""
    counts = sorted(Counter(run.bits.values()).items())
    if len(counts) == 1:
        return bits_words(counts[0][0])
    return ", ".join(f"{n} × {'fp32' if b == FULL else b}" for b, n in counts) + " bits"


def bits_list(run: RunData) -> str:
    """``4, 6, 8 bits``: which there are."""
    found = sorted(set(run.bits.values()))
    return (
        bits_words(found[0]) if len(found) == 1 else ", ".join("fp32" if b == FULL else str(b) for b in found) + " bits"
    )


def headline(run: RunData) -> str:
    """What ran, on what."""
    return f"{run.title[0].upper()}{run.title[1:]} on {run.config.data}"


class Tile(NamedTuple):
    """A figure at a glance, and a few words about it."""

    name: str
    value: str
    more: str


def tiles(run: RunData, found: Costs | str | None = None) -> list[Tile]:
    """The figures that one asks for first."""
    result, knn, loss, shown = run.result, run.over_rounds("knn"), run.over_rounds("loss"), []
    if result is not None and result.global_accuracy is not None:
        shown.append(Tile("global accuracy", percent(result.global_accuracy), _how_global(run)))
    if result is not None and result.local_accuracy is not None:
        known = [c.accuracy for c in run.clients if isfinite(c.accuracy)]
        between = f"{percent(min(known))} to {percent(max(known))}"
        shown.append(Tile("mean local accuracy", percent(result.local_accuracy), between))
    if knn:
        best = max(v for _, v in knn)
        shown.append(Tile("kNN accuracy", percent(knn[-1][1]), f"round {knn[-1][0]:g}; best {percent(best)}"))
    if loss:
        shown.append(Tile("loss", f"{loss[-1][1]:.3f}", f"from {loss[0][1]:.3f}"))
    more = "up and down" if result is not None else "up and down, so far"
    if isinstance(found, Costs) and run.bytes_moved and found.traffic[0]:
        more = f"fp32 would move {ratio_text(*reversed(found.traffic))}"
    shown.append(Tile("bytes moved", bytes_text(run.bytes_moved), more))
    spent = [sum(float(line.get(key, 0.0)) for line in run.rounds) for key in ("client_seconds", "server_seconds")]
    return [*shown, Tile("clients' time", seconds_text(spent[0]), f"server {seconds_text(spent[1])}")]


def _how_global(run: RunData) -> str:
    """What was tested for the global accuracy."""
    if run.objective == "supervised":
        return "its own classifier, uniform test set"
    alone = run.algorithm is not None and not run.algorithm.federates
    whose = "mean over the clients' models, " if alone else ""
    return f"{whose}linear probe, uniform test set"


def warnings(run: RunData) -> list[str]:
    """What a reader must not miss, in plain words."""
    found = collapse_warnings(run)
    rejected = [item for line in run.rounds for item in line.get("rejected", {}).items()]
    if rejected:
        times, reasons = Counter(name for name, _ in rejected), dict(rejected)
        who = "; ".join(f"{n} {counted(count, 'time')} (last: {reasons[n]})" for n, count in times.most_common())
        found.append(f"{counted(len(rejected), 'update')} not used: {who}.")
    skipped = sum(int(line.get("skipped_steps", 0)) for line in run.rounds)
    if skipped:
        steps = counted(skipped, "training step")
        found.append(f"{steps} skipped, because the gradients were not finite; a lower lr may help.")
    return found


def _updated(run: RunData) -> str:
    try:
        when = (run.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return "no round yet"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def _software(run: RunData) -> str:
    words = [
        f"{key} {run.environment[key]}" for key in ("fedqssl", "torch", "python", "machine") if key in run.environment
    ]
    kernels = run.environment.get("kernels")
    if isinstance(kernels, dict):
        words.append(" ".join(["kernels", *(str(kernels[k]) for k in ("backend", "native_detail") if kernels.get(k))]))
    return ", ".join(words) or "unknown"


def _server(run: RunData) -> str:
    """What the algorithm's server does in a round."""
    if run.algorithm is None:
        return "unknown: the algorithm cannot be imported any more"
    c = run.config
    work = run.algorithm.work(c, c.participants(max(len(run.clients), 1)))
    parts = []
    if work.dequantize_epochs is not None:
        parts.append(f"{counted(work.dequantize_epochs, 'de-quantization epoch')} per client")
    if work.buffer_epochs:
        parts.append(f"{counted(work.buffer_epochs, 'epoch')} of one model on the buffer")
    if work.union_epochs:
        parts.append(f"{counted(work.union_epochs, 'epoch')} of one model on all clients' images at the clients' lr")
    if work.requantize_epochs:
        parts.append(f"{counted(work.requantize_epochs, 're-quantization epoch')} per bitwidth")
    rate = [f"lr {c.lr if c.server.lr is None else c.server.lr:g}"] if parts else []
    if work.dequantize_epochs is not None:
        parts.append(f"aggregation temperature {c.aggregation.temperature:g}")
    elif work.averages:
        parts.append("averages by numbers of images")
    return "; ".join([*parts, *rate]) or "nothing"


def protocol(run: RunData) -> dict[str, str]:
    """Everything that affects accuracy, and where it ran."""
    c, low = run.config, run.config.lowbit
    split = {
        "dirichlet": f"Dirichlet({c.beta:g})",
        "classes": f"{c.classes_per_client} classes per client",
        "skew": f"skew, minority {c.minority:g}",
    }.get(c.partition, c.partition)
    trained = f", temperature {c.ssl.temperature:g}" if run.objective == "simclr" else ""
    rounds = f"{counted(c.rounds, 'round')} of {counted(c.local_epochs, 'epoch')}"
    quantizers = f"weights {low.weights}, rule {low.rule}, scale {low.scale}, rounding {low.rounding}"
    return {
        "protocol": f"{run.protocol} (runs with the same digits have comparable accuracies)",
        "algorithm": f"{c.algorithm}, objective {run.objective}{trained}",
        "data": c.data + (f", {c.images:,} images" if c.images else ""),
        "split": f"{split}; buffer {c.buffer_ratio:g} of all images ({run.buffer:,})",
        "clients": f"{len(run.clients)}: {bits_summary(run)}; {c.fraction:.0%} take part in a round",
        "model": f"{c.model}, width {c.width}",
        "training": f"{rounds}, batch {c.batch_size}, lr {c.lr:g} ({c.lr_schedule})",
        "server": _server(run),
        "low-bit": f"{quantizers}, activation clip {low.activation_clip:g}",
        "seed": str(c.seed),
        "software": _software(run),
        "last round written": _updated(run),
    }


_WHAT = {
    "config.toml": "all settings; fedqssl run starts from it",
    "result.json": "accuracies, bytes, times",
    "summary.md": "the same in words",
    "metrics.jsonl": "a line per round",
    "partition.json": "who holds which images",
    "data.json": "labels by client",
    "environment.json": "software and machine",
    "log.txt": "what the run said",
    "curves.png": "curves as an image",
    "partition.png": "labels as an image",
}


class Link(NamedTuple):
    """A file of the run that is there."""

    href: str
    name: str
    more: str


def link(target: Path, base: Path, name: str, more: str = "") -> Link | None:
    """A link that works wherever page and run are moved to together; None if there is no such file."""
    if not target.is_file():
        return None
    relative = Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    return Link(quote(relative) if not relative.startswith("/") else f"file://{quote(relative)}", name, more)


def files(run: RunData, base: Path) -> list[Link]:
    """Links to the run's files, from a page that lies in ``base``."""
    found = (link(run.path / name, base, name, what) for name, what in _WHAT.items())
    return [f._replace(more=f"{f.more}, {bytes_text((run.path / f.name).stat().st_size)}") for f in found if f]


def models(run: RunData, base: Path) -> list[Link]:
    """Links to the clients' own models."""
    places = ((c, run.path / "clients" / c.name / "model.fqssl") for c in run.clients)
    return [found for c, path in places if (found := link(path, base, c.name, bits_words(c.bits)))]


__all__ = [
    "bits_list",
    "bits_summary",
    "files",
    "headline",
    "link",
    "models",
    "protocol",
    "tiles",
    "warnings",
]
