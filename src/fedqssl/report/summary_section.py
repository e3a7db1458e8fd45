"""The top and the end of a run's page: headline, figures at a glance, warnings, protocol, files."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from fedqssl.federated.algorithms import get_algorithm
from fedqssl.report.costs import Costs
from fedqssl.report.data import RunData
from fedqssl.report.html import Child, Markup, el, join, section
from fedqssl.report.learning_section import collapse_warnings
from fedqssl.report.theme import bits_words, percent
from fedqssl.units import bytes_text, ratio_text, seconds_text


def bits_summary(run: RunData) -> str:
    """``2 × 4, 3 × 6 bits``."""
    counts = sorted(Counter(run.bits.values()).items())
    if len(counts) == 1:
        return bits_words(counts[0][0])
    return ", ".join(f"{n} × {'fp32' if b == 32 else b}" for b, n in counts) + " bits"


def bits_list(run: RunData) -> str:
    """``4, 6, 8 bits``: which there are."""
    found = sorted(set(run.bits.values()))
    return (
        bits_words(found[0]) if len(found) == 1 else ", ".join("fp32" if b == 32 else str(b) for b in found) + " bits"
    )


def headline(run: RunData) -> str:
    """What ran, on what."""
    return f"{run.config.algorithm} on {run.config.data}"


def status(run: RunData) -> Markup:
    """Whether the run is finished, and how far it is if not."""
    total = run.config.rounds
    if run.result is not None:
        return el("span", f"finished, {counted(total, 'round')}", class_="pill good")
    return el("span", f"not finished: round {run.done} of {total}", class_="pill going")


def tiles(run: RunData, found: Costs | str | None) -> Markup:
    """The figures that one asks for first."""
    result, knn = run.result, run.over_rounds("knn")
    shown: list[tuple[str, str, str]] = []
    if result is not None and result.global_accuracy is not None:
        shown.append(("global accuracy", percent(result.global_accuracy), _how_global(run)))
    if result is not None and result.local_accuracy is not None:
        known = [c.accuracy for c in run.clients if c.accuracy is not None]
        shown.append(
            ("mean local accuracy", percent(result.local_accuracy), f"{percent(min(known))} to {percent(max(known))}")
        )
    if knn:
        best = max(v for _, v in knn)
        shown.append(("kNN accuracy", percent(knn[-1][1]), f"round {knn[-1][0]:g}; best {percent(best)}"))
    loss = run.over_rounds("loss")
    if loss:
        shown.append(("loss", f"{loss[-1][1]:.3f}", f"from {loss[0][1]:.3f}"))
    moved = run.bytes_moved
    saved = ratio_text(found.traffic[1], found.traffic[0]) if isinstance(found, Costs) and moved else ""
    shown.append(
        (
            "bytes moved",
            bytes_text(moved),
            f"fp32 would move {saved}" if saved else "up and down, so far" if result is None else "up and down",
        )
    )
    spent = [sum(float(line.get(key, 0.0)) for line in run.rounds) for key in ("client_seconds", "server_seconds")]
    shown.append(("clients' time", seconds_text(spent[0]), f"server {seconds_text(spent[1])}"))
    return el(
        "dl",
        *(el("div", el("dt", name), el("dd", value, el("small", more)), class_="tile") for name, value, more in shown),
        class_="tiles",
    )


def _how_global(run: RunData) -> str:
    """What was tested for the global accuracy."""
    if run.objective == "supervised":
        return "its own classifier, uniform test set"
    whose = "mean over the clients' models, " if run.config.algorithm == "local_only" else ""
    return f"{whose}linear probe, uniform test set"


def warnings(run: RunData) -> Markup:
    """What a reader must not miss, in plain words."""
    found = collapse_warnings(run)
    rejected = Counter(name for line in run.rounds for name in line.get("rejected", {}))
    if rejected:
        found.append(f"{sum(rejected.values())} updates were not used: {_rejections(run, rejected)}.")
    skipped = sum(int(line.get("skipped_steps", 0)) for line in run.rounds)
    if skipped:
        found.append(
            f"{skipped} training steps were skipped, because their gradients were not finite; a lower lr may help."
        )
    return join(el("p", words, class_="alert", role="alert") for words in found)


def _rejections(run: RunData, rejected: Counter[str]) -> str:
    """Every client whose updates were not used: how often, and why the last time."""
    reasons = {name: why for line in run.rounds for name, why in line.get("rejected", {}).items()}
    return "; ".join(f"{name} {times} times (the last: {reasons[name]})" for name, times in rejected.most_common())


def header(run: RunData, found: Costs | str | None) -> Markup:
    """Headline, status, figures and warnings."""
    c = run.config
    part = f", {c.fraction:.0%} a round" if c.fraction < 1 else ""
    words = (
        f"{len(run.clients)} clients ({bits_summary(run)}{part}), {c.model} of width {c.width}, {c.partition} split, "
        f"{counted(c.local_epochs, 'local epoch')}, seed {c.seed}."
    )
    return el(
        "header",
        el("p", run.name, class_="over"),
        el("h1", headline(run)),
        el("p", status(run), " ", words, class_="lead"),
        warnings(run),
        tiles(run, found),
        id="top",
    )


def _updated(run: RunData) -> str:
    try:
        when = (run.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return "no round yet"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def _software(run: RunData) -> str:
    known = {key: run.environment[key] for key in ("fedqssl", "torch", "python", "machine") if key in run.environment}
    words = [f"{key} {value}" for key, value in known.items()]
    kernels = run.environment.get("kernels")
    if isinstance(kernels, dict):
        words.append(" ".join(["kernels", *(str(kernels[k]) for k in ("backend", "native_detail") if kernels.get(k))]))
    return ", ".join(words) or "unknown"


def counted(number: int, thing: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _algorithm(run: RunData) -> str:
    words = f"{run.config.algorithm}, objective {run.objective}"
    return f"{words}, temperature {run.config.ssl.temperature:g}" if run.objective == "simclr" else words


def _server(run: RunData) -> str:
    """What the algorithm's server does in a round."""
    c = run.config
    work = get_algorithm(c.algorithm).work(c, c.participants(max(len(run.clients), 1)))
    parts = []
    if work.dequantize_epochs is not None:
        parts.append(f"{counted(work.dequantize_epochs, 'de-quantization epoch')} a client")
    if work.buffer_epochs:
        parts.append(f"{counted(work.buffer_epochs, 'epoch')} of one model on the buffer")
    if work.union_epochs:
        parts.append(f"{counted(work.union_epochs, 'epoch')} of one model on all clients' images at the clients' lr")
    if work.requantize_epochs:
        parts.append(f"{counted(work.requantize_epochs, 're-quantization epoch')} a bitwidth")
    trains = bool(parts)
    if work.dequantize_epochs is not None:
        parts.append(f"aggregation temperature {c.aggregation.temperature:g}")
    elif work.averages:
        parts.append("averages by numbers of images")
    if trains:
        parts.append(f"lr {c.lr if c.server.lr is None else c.server.lr:g}")
    return "; ".join(parts) or "nothing"


def protocol(run: RunData) -> Markup:
    """Everything that affects accuracy, and where it ran."""
    c = run.config
    split = {
        "dirichlet": f"Dirichlet({c.beta:g})",
        "classes": f"{c.classes_per_client} classes per client",
        "skew": f"skew, minority {c.minority:g}",
    }
    facts: list[tuple[str, str]] = [
        ("protocol", f"{run.protocol} (equal digits: comparable accuracies)"),
        ("algorithm", _algorithm(run)),
        ("data", f"{c.data}" + (f", {c.images:,} images" if c.images else "")),
        ("split", f"{split.get(c.partition, c.partition)}; buffer {c.buffer_ratio:g} of all images ({run.buffer:,})"),
        ("clients", f"{len(run.clients)}: {bits_summary(run)}; {c.fraction:.0%} take part in a round"),
        ("model", f"{c.model}, width {c.width}"),
        (
            "training",
            f"{counted(c.rounds, 'round')} of {counted(c.local_epochs, 'epoch')}, batch {c.batch_size}, lr {c.lr:g} "
            f"({c.lr_schedule})",
        ),
        ("server", _server(run)),
        (
            "low-bit",
            f"weights {c.lowbit.weights}, rule {c.lowbit.rule}, scale {c.lowbit.scale}, rounding {c.lowbit.rounding}, "
            f"activation clip {c.lowbit.activation_clip:g}",
        ),
        ("seed", str(c.seed)),
        ("software", _software(run)),
        ("last round written", _updated(run)),
    ]
    return section(
        "protocol",
        "Protocol",
        el("dl", *(join([el("dt", k), el("dd", v)]) for k, v in facts), class_="facts card full"),
    )


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


def link(target: Path, base: Path, words: str) -> Markup:
    """A link that works wherever page and run are moved to together."""
    relative = Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    return el("a", words, href=quote(relative) if not relative.startswith("/") else "file://" + quote(relative))


def files(run: RunData, base: Path) -> Markup:
    """Links to the run's files, from a page that lies in ``base``."""
    rows: list[Child] = []
    for name, what in _WHAT.items():
        if (run.path / name).is_file():
            size = bytes_text((run.path / name).stat().st_size)
            rows.append(el("li", link(run.path / name, base, name), el("small", f" {what}, {size}")))
    models = [c for c in run.clients if (run.path / "clients" / c.name / "model.fqssl").is_file()]
    handed = join(
        el(
            "li",
            link(run.path / "clients" / c.name / "model.fqssl", base, c.name),
            el("small", f" {bits_words(c.bits)}"),
        )
        for c in models
    )
    extra = (
        el("details", el("summary", f"{len(models)} clients' own models"), el("ul", handed, class_="files"))
        if models
        else None
    )
    return section("files", "Files of the run", el("div", el("ul", *rows, class_="files"), extra, class_="card full"))


__all__ = ["bits_list", "bits_summary", "files", "header", "headline", "link", "protocol", "status", "tiles"]
