"""Figures of runs with clusters or a simulated clock: who is with whom and why; accuracy against simulated time and energy."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

from fedqssl.reporting.charts import ChartRow, Point, rows_chart, scatter
from fedqssl.reporting.data import RunData
from fedqssl.reporting.parts import Figure
from fedqssl.reporting.svg import Mark
from fedqssl.reporting.theme import bits_words, counted, percent, plain, tick
from fedqssl.units import joules_text, seconds_text

OWN, OTHER, KNN = Mark("circle", "accent"), Mark("cross", "quiet"), Mark("circle", "knn")


def _newest(run: RunData, key: str) -> dict[str, Any]:
    """The newest value of each client."""
    return {name: value for line in run.rounds for name, value in (line.get(key) or {}).items()}


def clusters_figure(run: RunData) -> Figure | None:
    """How far every client's signature is from the centre of its cluster, and from those of the others."""
    of = {name: int(c) for name, c in _newest(run, "clusters").items() if c is not None and name in run.bits}
    if run.result is not None:
        of |= {name: c.cluster for name, c in run.result.clients.items() if c.cluster is not None and name in run.bits}
    if not of:
        return None
    measured = {n: d for n, d in _newest(run, "cluster_distances").items() if n in of and None not in d}
    rows, table = [], []
    for name in sorted(of, key=lambda n: (of[n], n)):
        far = measured.get(name, [])
        tips = [f"{name}, {bits_words(run.bits[name])}: {plain(d)} from cluster {c}" for c, d in enumerate(far)]
        points = [Point(d, OWN if c == of[name] else OTHER, tips[c]) for c, d in enumerate(far)]
        rows.append(ChartRow(f"{name} · cluster {of[name]}", points, joined=True))
        table.append([name, bits_words(run.bits[name]), of[name], ", ".join(map(plain, far)) or "–"])
    sizes = ", ".join(f"cluster {c}: {counted(count, 'client')}" for c, count in sorted(Counter(of.values()).items()))
    note = f"{sizes}. Clients are together if their batch norms measured similar variances in their first round. "
    return Figure(
        "clusters",
        "Who is with whom",
        f"Distance of every client to the centres of the clusters ({sizes})",
        rows_chart(rows, tick, "distance between log standard deviations"),
        note + "A client whose own mark is not clearly the first belongs to none; one without marks never took part.",
        [("its own cluster", OWN), ("the others", OTHER)],
        ["client", "bits", "cluster", "distances, from cluster 0"],
        table,
    )


def clock_figures(run: RunData) -> list[Figure | None]:
    """Accuracy of kNN against simulated time, and against the energy of all clients' training, if it is known."""
    times = dict(run.over_rounds("simulated_time"))
    if not times:
        return []
    late = Counter(
        name for line in run.rounds for name, why in line.get("rejected", {}).items() if "(simulated)" in why
    )
    missed = ", ".join(f"{name} {count}" for name, count in late.most_common(4))
    note = f"{seconds_text(max(times.values()))} for {counted(len(times), 'round')}, by the run's device table. "
    note += f"Rounds without a reply in time: {missed}." if missed else "Every client replied in time."
    joules = run.over_rounds("simulated_joules")
    energy = dict(zip((n for n, _ in joules), accumulate(j for _, j in joules), strict=True))
    return [
        _against(run, "clock", "Accuracy against simulated time", times, "simulated seconds", note),
        _against(run, "energy", "Accuracy against energy", energy, "joules of all clients' training", _energy(energy)),
    ]


def _energy(energy: dict[float, float]) -> str:
    return f"{joules_text(max(energy.values(), default=0.0))} in all, downloads and uploads not counted."


def _against(run: RunData, name: str, title: str, x: dict[float, float], axis: str, note: str) -> Figure | None:
    """One figure; None where nothing is known."""
    known = [(n, x[n], y) for n, y in run.over_rounds("knn") if n in x]
    if not known:
        return None
    points = [Point(at, KNN, f"round {n:g}: {percent(y)} at {tick(at)}", y) for n, at, y in known]
    rows = [[f"{n:g}", tick(at), percent(y)] for n, at, y in known]
    label = f"{title}: {percent(known[-1][2])} at {tick(known[-1][1])} {axis}"
    legend = [("kNN of the aggregated model", KNN)]
    return Figure(name, title, label, scatter(points, axis), note, legend, ["round", axis, "kNN"], rows)


__all__ = ["clock_figures", "clusters_figure"]
