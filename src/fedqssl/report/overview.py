"""The page of a folder of runs: a table of all, accuracies side by side, and a short section for each."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedqssl.config.keys import flat
from fedqssl.report.charts import Point, Row, Series, line_chart, rows_chart
from fedqssl.report.data import RunData, mean
from fedqssl.report.html import Child, Markup, el, figure, grid, join, section, table
from fedqssl.report.learning_section import accuracy_figure, loss_figure
from fedqssl.report.summary_section import bits_list, bits_summary, headline, link, status, tiles, warnings
from fedqssl.report.svg import legend
from fedqssl.report.theme import Look, percent, percent_tick
from fedqssl.units import bytes_text

SECTIONS = 40
"""Runs up to which each has a section of its own."""
_NOT_A_DIFFERENCE = {"seed", "data_dir", "threads", "workers", "engine", "track"}


def differences(runs: Sequence[RunData]) -> dict[int, str]:
    """By position: what a run has other than most runs, seeds aside; the same words mean the same settings."""
    settings: list[Mapping[str, object]] = [flat(run.config.model_dump(mode="json")) for run in runs]
    keys = [
        k for k in settings[0] if k not in _NOT_A_DIFFERENCE and any(s.get(k) != settings[0].get(k) for s in settings)
    ]
    usual = {k: Counter(str(s.get(k)) for s in settings).most_common(1)[0][0] for k in keys}
    short = _bits_words(runs)
    words = {}
    for i, (run, values) in enumerate(zip(runs, settings, strict=True)):
        parts = [str(values["algorithm"])] if "algorithm" in keys else []
        parts += [short[tuple(run.bits.values())]] if "bits" in keys else []
        own = [k for k in keys if k not in ("algorithm", "bits", "clients") and str(values.get(k)) != usual[k]]
        parts += [f"{k}={values.get(k)}" for k in own]
        words[i] = ", ".join(parts) or str(values["algorithm"])
    return words


def _bits_words(runs: Sequence[RunData]) -> dict[tuple[int, ...], str]:
    """``4, 6, 8, 12 bits``; with numbers of clients where that would mean two things."""
    short = {tuple(run.bits.values()): bits_list(run) for run in runs}
    full = {tuple(run.bits.values()): bits_summary(run) for run in runs}
    return {bits: words if Counter(short.values())[words] == 1 else full[bits] for bits, words in short.items()}


def overview(path: Path, runs: Sequence[RunData], look: Look, base: Path) -> tuple[list[tuple[str, str]], Markup]:
    """The menu and the body of the page."""
    groups = differences(runs)
    finished = sum(run.result is not None for run in runs)
    protocols = len({run.protocol for run in runs})
    words = f"{finished} of {len(runs)} finished; {protocols} protocol{'s' if protocols > 1 else ''}."
    if protocols > 1:
        words += " Runs of different protocols are not repetitions: the settings that differ are named below."
    top = el(
        "header",
        el("p", path.absolute().name, class_="over"),
        el("h1", f"{len(runs)} runs"),
        el("p", words, class_="lead"),
        id="top",
    )
    parts = [top, section("runs", "All runs", el("div", _table(path, runs), class_="card full"))]
    cards = [_accuracies(runs, groups, "global"), _accuracies(runs, groups, "local"), _curves(runs, groups)]
    if any(cards):
        parts.append(section("compare", "Side by side", grid(*cards, loose=True)))
    parts += [_section(i, run, look, path, base) for i, run in enumerate(runs[:SECTIONS])]
    if len(runs) > SECTIONS:
        parts.append(
            el("p", f"The first {SECTIONS} runs have sections; for the others use fedqssl report RUN.", class_="empty")
        )
    menu = [("runs", "All runs"), *([("compare", "Side by side")] if any(cards) else [])]
    menu += [(f"run-{i}", run.name) for i, run in enumerate(runs[:SECTIONS])]
    return menu, join(parts)


def _table(path: Path, runs: Sequence[RunData]) -> Markup:
    rows: list[list[Child]] = []
    for i, run in enumerate(runs):
        result, knn = run.result, run.over_rounds("knn")
        known = [c.accuracy for c in run.clients if c.accuracy is not None]
        name = run.path.relative_to(path).as_posix()
        rows.append(
            [
                el("a", name, href=f"#run-{i}") if i < SECTIONS else name,
                run.config.algorithm,
                run.config.data,
                bits_summary(run),
                f"{run.done} of {run.config.rounds}",
                run.config.seed,
                percent(result.global_accuracy if result else None),
                percent(result.local_accuracy if result else None),
                percent(min(known) if known else None),
                percent(knn[-1][1] if knn else None),
                bytes_text(run.bytes_moved),
                el("code", run.protocol),
            ]
        )
    head = [
        "run",
        "algorithm",
        "data",
        "bits",
        "rounds",
        "seed",
        "global",
        "mean local",
        "worst client",
        "last kNN",
        "bytes moved",
        "protocol",
    ]
    return table(head, rows, "All runs; choose a column's head to sort by it")


def _accuracies(runs: Sequence[RunData], groups: Mapping[int, str], which: str) -> Markup | None:
    """A row per setting, a point per seed."""
    found: dict[str, list[tuple[str, float]]] = {}
    for i, run in enumerate(runs):
        value = (
            None
            if run.result is None
            else run.result.global_accuracy
            if which == "global"
            else run.result.local_accuracy
        )
        if value is not None:
            found.setdefault(groups[i], []).append((f"{run.name}, seed {run.config.seed}", value))
    if not found:
        return None
    order = sorted(found, key=lambda g: -mean([v for _, v in found[g]]))
    rows: list[Row] = []
    data: list[list[Child]] = []
    for group in order:
        values = [v for _, v in found[group]]
        centre = mean(values)
        points = [Point(v, 0, "circle", "quiet", f"{group}: {percent(v)} ({name})") for name, v in found[group]]
        rows.append(
            Row(
                group,
                [*points, Point(centre, 0, "diamond", "accent", f"{group}: mean {percent(centre)} of {len(values)}")],
            )
        )
        data.append(
            [group, len(values), percent(centre), percent(statistics.stdev(values)) if len(values) > 1 else "–"]
        )
    title = "Global accuracy" if which == "global" else "Mean local accuracy"
    chart = rows_chart(f"{title} of every setting, best first", rows, percent_tick, title.lower())
    entries = [("a run", "circle", "quiet"), ("mean of a setting", "diamond", "accent")]
    return figure(
        f"compare-{which}",
        title,
        chart,
        note="Best setting on top.",
        legend=legend(entries),
        data=table(["setting", "runs", "mean", "deviation"], data, title),
    )


def _curves(runs: Sequence[RunData], groups: Mapping[int, str]) -> Markup | None:
    """The kNN monitor of all runs."""
    lines, kinds = [], {group: f"g{i % 6}" for i, group in enumerate(dict.fromkeys(groups.values()))}
    for i, run in enumerate(runs):
        points = run.over_rounds("knn")
        if points:
            tip = f"{run.name}: {groups[i]}, seed {run.config.seed}, kNN {percent(points[-1][1])}"
            lines.append(Series(run.name, points, kinds[groups[i]], tip=tip))
    if not lines:
        return None
    entries = [(group, "square", kind) for group, kind in kinds.items()] if len(kinds) <= 6 else []
    rows: list[list[Child]] = [
        [s.name, len(s.points), percent(s.points[0][1]), percent(s.points[-1][1])] for s in lines
    ]
    label = f"kNN accuracy of {len(lines)} runs over rounds"
    note = "One line per run; point at a line for its name."
    return figure(
        "compare-knn",
        "kNN accuracy over rounds",
        line_chart(label, lines, percent_tick),
        note=note,
        legend=legend(entries) if entries else None,
        data=table(["run", "measured", "first", "last"], rows, label),
    )


def _section(number: int, run: RunData, look: Look, path: Path, base: Path) -> Markup:
    """One run in short."""
    own = run.path / "report.html"
    places = [link(run.path / "config.toml", base, "config.toml")]
    places += [link(own, base, "full report")] if own.is_file() else []
    places += [link(run.path / "summary.md", base, "summary.md")] if (run.path / "summary.md").is_file() else []
    more = el("p", join(places, " · "), class_="note")
    cards = [
        loss_figure(run, look, f"loss-{number}"),
        accuracy_figure(run, f"accuracy-{number}"),
        _clients(number, run, look),
    ]
    title = f"{run.path.relative_to(path).as_posix()}: {headline(run)}"
    return section(
        f"run-{number}",
        title,
        el("p", status(run), " ", bits_summary(run), ", ", f"seed {run.config.seed}"),
        warnings(run),
        tiles(run, None),
        grid(*cards),
        more,
    )


def _clients(number: int, run: RunData, look: Look) -> Markup | None:
    known = sorted((c for c in run.clients if c.accuracy is not None), key=lambda c: c.accuracy or 0.0)
    if not known:
        return None
    rows = [
        Row(
            c.name,
            [
                Point(
                    c.accuracy or 0.0,
                    0,
                    look.shape(c.bits),
                    look.kind(c.bits),
                    f"{c.name}, {c.bits} bits, {c.train} images: {percent(c.accuracy)}",
                )
            ],
        )
        for c in known
    ]
    label = f"Local accuracy of the {len(known)} clients of {run.name}, worst first"
    data = table(
        ["client", "bits", "images", "accuracy"], [[c.name, c.bits, c.train, percent(c.accuracy)] for c in known], label
    )
    return figure(
        f"clients-{number}",
        "Clients, worst first",
        rows_chart(label, rows, percent_tick, "local accuracy", bounds=(0.0, 1.0), tall=220),
        legend=look.legend(),
        data=data,
    )


__all__ = ["differences", "overview"]
