"""The page of a folder of runs: a table of all, accuracies side by side, and a short section for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, stdev

from fedqssl.config.keys import flat
from fedqssl.reporting.charts import ChartRow, Level, Point, Series, line_chart, rows_chart
from fedqssl.reporting.clients_section import CONTROL, control_legend, control_point
from fedqssl.reporting.data import RunData, short_best
from fedqssl.reporting.learning_section import accuracy_figure, loss_figure
from fedqssl.reporting.parts import Figure, Section
from fedqssl.reporting.summary_section import bits_summary
from fedqssl.reporting.svg import Mark
from fedqssl.reporting.theme import Theme, bits_words, counted, percent, percent_tick

SECTIONS = 40
"""Each run has its own section up to this number of runs."""
_NOT_A_DIFFERENCE = {"seed", "data_dir", "threads", "server.threads", "workers", "engine", "track"}


def differences(runs: Sequence[RunData]) -> list[str]:
    """How each run differs from most runs, apart from the seed; equal texts mean equal settings."""
    settings: list[Mapping[str, object]] = [flat(run.config.model_dump(mode="json")) for run in runs]
    keys = [k for k in settings[0] if k not in _NOT_A_DIFFERENCE and any(s.get(k) != settings[0][k] for s in settings)]
    usual = {k: Counter(str(s.get(k)) for s in settings).most_common(1)[0][0] for k in keys}
    widths, titles = _bits_words(runs), {run.config.algorithm: run.title for run in runs}
    if len(set(titles.values())) < len(titles):  # two algorithms of one title must not look like one
        titles = {name: name for name in titles}
    found = []
    for run, values in zip(runs, settings, strict=True):
        title = titles[run.config.algorithm]
        parts = [title] if "algorithm" in keys else []
        parts += [widths[tuple(run.bits.values())]] if "bits" in keys else []
        own = [k for k in keys if k not in ("algorithm", "bits", "clients") and str(values.get(k)) != usual[k]]
        parts += [f"{k}={values.get(k)}" for k in own]
        found.append(", ".join(parts) or title)
    return found


def _bits_words(runs: Sequence[RunData]) -> dict[tuple[int, ...], str]:
    """``4, 6, 8, 12 bits``; with numbers of clients where it would be ambiguous."""
    short = {tuple(run.bits.values()): bits_summary(run, counts=False) for run in runs}
    full = {tuple(run.bits.values()): bits_summary(run) for run in runs}
    return {bits: words if Counter(short.values())[words] == 1 else full[bits] for bits, words in short.items()}


def short(i: int, run: RunData, theme: Theme) -> Section:
    """The section of run ``i``."""
    return Section(
        [loss_figure(run, theme, f"loss-{i}"), accuracy_figure(run, f"accuracy-{i}"), _clients(i, run, theme)]
    )


def compared(runs: Sequence[RunData]) -> Section:
    """Accuracies and curves of all runs side by side."""
    groups = differences(runs)
    figures = [_accuracies(runs, groups, "global"), _accuracies(runs, groups, "local"), _curves(runs, groups)]
    return Section([figure for figure in figures if figure], loose=True)


def _accuracies(runs: Sequence[RunData], groups: Sequence[str], which: str) -> Figure | None:
    """A row per setting, a point per seed."""
    found: dict[str, list[tuple[str, float]]] = {}
    bests: dict[str, list[float]] = {}
    for run, group in zip(runs, groups, strict=True):
        value = None if run.result is None else getattr(run.result, f"{which}_accuracy")
        if value is not None:
            found.setdefault(group, []).append((f"{run.name}, seed {run.config.seed}", value))
            bests.setdefault(group, []).append(short_best(run.controls[which])[1])
    if not found:
        return None
    one, middle, rows, data = Mark("circle", "quiet"), Mark("diamond", "accent"), [], []
    for group, named in sorted(found.items(), key=lambda item: -fmean(v for _, v in item[1])):
        values = [v for _, v in named]
        centre = fmean(values)
        points = [Point(v, one, f"{group}: {percent(v)} ({name})") for name, v in named]
        best = fmean(bests[group])
        points += [Point(best, CONTROL[1], f"{group}: best control {percent(best)}")] if isfinite(best) else []
        rows.append(
            ChartRow(group, [*points, Point(centre, middle, f"{group}: mean {percent(centre)} of {len(values)}")])
        )
        deviation = percent(stdev(values)) if len(values) > 1 else "–"
        data.append([group, len(values), percent(centre), deviation, percent(best)])
    title = "Global accuracy" if which == "global" else "Mean local accuracy"
    return Figure(
        f"compare-{which}",
        title,
        f"{title} of every setting, best first",
        rows_chart(rows, percent_tick, title.lower()),
        note="Best setting on top.",
        legend=[("a run", one), ("mean of a setting", middle), CONTROL],
        head=["setting", "runs", "mean", "deviation", "best control"],
        rows=data,
    )


def _curves(runs: Sequence[RunData], groups: Sequence[str]) -> Figure | None:
    """Accuracy of kNN in all runs."""
    kinds = {group: f"g{i % 6}" for i, group in enumerate(dict.fromkeys(groups))}
    lines = []
    for run, group in zip(runs, groups, strict=True):
        points = run.over_rounds("knn")
        if points:
            tip = f"{run.name}: {group}, seed {run.config.seed}, kNN {percent(points[-1][1])}"
            lines.append(Series(run.name, points, Mark("circle", kinds[group]), tip=tip))
    if not lines:
        return None
    floors = [floor for run in runs if isfinite(floor := run.last("untrained_knn"))]
    levels = [Level(fmean(floors), f"untrained, mean: {percent(fmean(floors))}")] if floors else []
    return Figure(
        "compare-knn",
        "kNN accuracy over rounds",
        f"kNN accuracy of {counted(len(lines), 'run')} over rounds",
        line_chart(lines, percent_tick, levels=levels),
        note="One line per run; point at a line for its name.",
        legend=[(group, Mark("square", kind)) for group, kind in kinds.items()] if len(kinds) <= 6 else (),
        head=["run", "measured", "first", "last"],
        rows=[[s.name, len(s.points), percent(s.points[0][1]), percent(s.points[-1][1])] for s in lines],
    )


def _clients(number: int, run: RunData, theme: Theme) -> Figure | None:
    known = sorted((c for c in run.clients if isfinite(c.accuracy)), key=lambda c: c.accuracy)
    if not known:
        return None
    rows = []
    for c in known:
        tip = f"{c.name}, {bits_words(c.bits)}, {counted(c.train, 'image')}: {percent(c.accuracy)}"
        rows.append(ChartRow(c.name, [*control_point(c), Point(c.accuracy, theme.mark(c.bits), tip)]))
    return Figure(
        f"clients-{number}",
        "Clients, worst first",
        f"Local accuracy of {counted(len(known), 'client')} of {run.name}, worst first",
        rows_chart(rows, percent_tick, "local accuracy", bounds=(0.0, 1.0), tall=220),
        legend=control_legend(known, theme),
        head=["client", "bits", "images", "accuracy", "best control"],
        rows=[[c.name, bits_words(c.bits), c.train, percent(c.accuracy), percent(c.best[1])] for c in known],
    )


__all__ = ["SECTIONS", "compared", "differences", "short"]
