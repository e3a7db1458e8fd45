"""The top and the end of a run's page: figures at a glance, warnings, what the server did, links."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from math import isfinite
from pathlib import Path
from urllib.parse import quote

from fedqssl.evaluation.controls import knn_warning
from fedqssl.files import MAX_NAME, read_json_or_none
from fedqssl.reporting.costs import Costs
from fedqssl.reporting.data import RunData, short_best
from fedqssl.reporting.learning_section import collapse_warnings
from fedqssl.reporting.theme import FULL, bits_words, counted, percent
from fedqssl.units import bytes_text, ratio_text, seconds_text

LOG_BYTES = 1 << 20
"""How much of the end of a log is read."""


def bits_summary(run: RunData, counts: bool = True) -> str:
    """``2 × 4, 3 × 6 bits``; without ``counts`` of clients ``4, 6 bits``."""
    found = sorted(Counter(run.bits.values()).items())
    if len(found) == 1:
        return bits_words(found[0][0])
    return ", ".join((f"{n} × " if counts else "") + ("fp32" if b == FULL else str(b)) for b, n in found) + " bits"


def headline(run: RunData) -> str:
    """What ran, on what."""
    control = run.algorithm is not None and run.algorithm.control  # "control: local only" begins the line
    return f"{run.title[:1].upper() + run.title[1:] if control else run.title} on {run.config.data}"


def tiles(run: RunData, found: Costs | str | None = None) -> list[tuple[str, str, str]]:
    """The headline figures: name, value, a short explanation."""
    result, knn, loss, shown = run.result, run.over_rounds("knn"), run.over_rounds("loss"), []
    if result is not None and result.global_accuracy is not None:
        more = f"{_how_global(run)}{_best(run, 'global')}"
        shown.append(("global accuracy", percent(result.global_accuracy), more))
    if result is not None and result.local_accuracy is not None:
        known = [c.accuracy for c in run.clients if isfinite(c.accuracy)]
        between = f"{percent(min(known))} to {percent(max(known))}" if len(known) > 1 else "of one client"
        between += _best(run, "local")
        shown.append(("mean local accuracy", percent(result.local_accuracy), between))
    if knn:
        best = max(v for _, v in knn)
        more, floor = f"round {knn[-1][0]:g}; best {percent(best)}", run.last("untrained_knn")
        more += f"; untrained {percent(floor)}" if isfinite(floor) else ""
        shown.append(("kNN accuracy", percent(knn[-1][1]), more))
    if loss:
        shown.append(("loss", f"{loss[-1][1]:.3f}", f"from {loss[0][1]:.3f}"))
    more = "up and down" if result is not None else "up and down, so far"
    if isinstance(found, Costs) and run.bytes_moved and found.traffic[0]:
        more = f"{ratio_text(*reversed(found.traffic))} as many at full precision (fp32)"
    shown.append(("bytes moved", bytes_text(run.bytes_moved), more))
    spent = [sum(float(line.get(key, 0.0)) for line in run.rounds) for key in ("client_seconds", "server_seconds")]
    shown.append(("clients' time", seconds_text(spent[0]), f"server {seconds_text(spent[1])}"))
    when, left = _logged(run) if result is None and run.done else ("", "")
    return [*shown, ("time left", f"about {left}", f"when round {run.done} ended, {when}")] if left else shown


def _how_global(run: RunData) -> str:
    """What was tested for the global accuracy."""
    if run.objective == "supervised":
        return "its own classifier, uniform test set"
    alone = run.algorithm is not None and not run.algorithm.federates
    whose = "mean over the clients' models, " if alone else ""
    return f"{whose}linear probe, uniform test set"


def _best(run: RunData, which: str) -> str:
    name, value = short_best(run.controls[which])
    return f"; best control {name} {percent(value)}" if name else ""


def verdict(run: RunData, worth: bool = True) -> str:
    """The sentence of a run that beat its controls, or of one that did not; else nothing."""
    result = run.result
    return result.verdict() if result is not None and all(m.worth for m in result.measured()) == worth else ""


def warnings(run: RunData) -> list[str]:
    """Warnings for the reader."""
    found = [words for words in (verdict(run, worth=False), *collapse_warnings(run)) if words]
    fallen = knn_warning(run.last("knn"), run.last("untrained_knn"))
    found += [f"{fallen}."] if fallen else []
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


def awaited(run: RunData) -> str:
    """Whom an unfinished run on real machines is waiting for, which its server notes beside the run; else nothing."""
    noted = read_json_or_none(run.path / "awaited.json") if run.result is None else None
    names = noted.get("clients") if isinstance(noted, dict) else None
    if not isinstance(names, list) or not names:
        return ""
    shown = ", ".join(str(name)[:MAX_NAME] for name in names[:10]) + (", ..." if len(names) > 10 else "")
    return f"Round {run.done + 1} has not received {counted(len(names), 'update')} yet: {shown}."


def updated(run: RunData) -> str:
    """When the last round ended, as the log says: dates of files change when they are copied."""
    if not run.done:
        return "no round yet"
    return _logged(run)[0] or "log.txt does not say"


def _logged(run: RunData) -> tuple[str, str]:
    """When the last round ended and the time that was left then, as the log says; empty where it says nothing."""
    text = ""
    with suppress(OSError), (run.path / "log.txt").open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES, 0))
        text = file.read(LOG_BYTES).decode("utf-8", "replace")
    line = rf"^(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d) round {run.done}/.*?(?:  ([\d.]+ \w+) left)?$"
    found = re.findall(line, text, re.M)
    return found[-1] if found else ("", "")


def software(run: RunData) -> str:
    """Where it ran."""
    words = [
        f"{key} {run.environment[key]}" for key in ("fedqssl", "torch", "python", "machine") if key in run.environment
    ]
    kernels = run.environment.get("kernels")
    if isinstance(kernels, dict):
        words.append(" ".join(["kernels", *(str(kernels[k]) for k in ("backend", "native_detail") if kernels.get(k))]))
    return ", ".join(words) or "unknown"


def server_work(run: RunData) -> str:
    """What the algorithm's server does in a round."""
    if run.algorithm is None:
        asked = ":" in run.config.algorithm and not run.trust
        return f"unknown: the algorithm {'is imported only with --trust' if asked else 'can no longer be imported'}"
    c = run.config
    work = run.algorithm.round_work(c, c.participants(max(len(run.clients), 1)))
    parts = []
    if work.dequantize_epochs is not None:
        parts.append(f"{_length(work.dequantize_epochs, work.dequantize_steps, 'de-quantization ')} per client")
    if work.passes:
        parts.append("the buffer through every client's model")
    if work.buffer_epochs or work.buffer_steps:
        parts.append(f"{_length(work.buffer_epochs, work.buffer_steps)} of one model on the buffer")
    if work.union_epochs or work.union_steps:
        whose = "of one model on all clients' images at the clients' lr"
        parts.append(f"{_length(work.union_epochs, work.union_steps)} {whose}")
    if work.requantize_epochs:
        parts.append(f"{counted(work.requantize_epochs, 're-quantization epoch')} per bitwidth")
    rate = [f"lr {c.lr if c.server.lr is None else c.server.lr:g}"] if parts else []
    if work.dequantize_epochs is not None:
        parts.append(f"aggregation temperature {c.aggregation.temperature:g}")
    elif work.averages:
        parts.append("averages by numbers of images")
    if work.averages and c.aggregation.weights != "algorithm":
        parts.append(f"aggregation weights by {c.aggregation.weights}")
    return "; ".join([*parts, *rate]) or "nothing"


def _length(epochs: int, steps: int, kind: str = "") -> str:
    """``2 epochs`` or ``40 steps``."""
    return counted(steps, f"{kind}step") if steps else counted(epochs, f"{kind}epoch")


def link(target: Path, base: Path) -> str | None:
    """A relative link, which works if page and run are moved together; None if the file does not exist."""
    if not target.is_file():
        return None
    relative = Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    return quote(relative) if not relative.startswith("/") else f"file://{quote(relative)}"


__all__ = [
    "awaited",
    "bits_summary",
    "headline",
    "link",
    "server_work",
    "software",
    "tiles",
    "updated",
    "verdict",
    "warnings",
]
