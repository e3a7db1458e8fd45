"""The clients: which perform worst, and which labels each holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean, quantiles
from typing import Any

from fedqssl.evaluation.controls import SHORT
from fedqssl.plotting import by_orders
from fedqssl.reporting.charts import MANY_ROWS, ChartRow, Point, heat_map, rows_chart, scatter, shade_legend
from fedqssl.reporting.data import Client, Labels, RunData
from fedqssl.reporting.fleet_figures import clusters_figure
from fedqssl.reporting.parts import Figure, Section
from fedqssl.reporting.sources import FLEET
from fedqssl.reporting.svg import Mark
from fedqssl.reporting.theme import Theme, bits_words, counted, percent, percent_tick, tick

FEW = 24
"""Whiskers are drawn up to this number of clients."""
MANY_ENOUGH = 8
"""Rank correlations over fewer clients are chance."""
CONTROL = ("best control", Mark("cross", "quiet"))
"""How a client's best control is called and marked."""
ROUNDING = 1e-6
"""Accuracies are shares of a few images, as floats: less than this apart, they are equal."""


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share theirs."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rho; None if one of the two does not vary."""
    a, b = _ranks(x), _ranks(y)
    ma, mb = fmean(a), fmean(b)
    over = sum((p - ma) * (q - mb) for p, q in zip(a, b, strict=True))
    under = (sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b)) ** 0.5
    return over / under if under else None


def clients(run: RunData, theme: Theme) -> Section:
    """Accuracy of every client against its bits and its data."""
    known = [c for c in run.clients if isfinite(c.accuracy)]
    if not known:
        why = "These data have no labels" if run.labels is None else "No images were held out"
        ended = f"{why}, so accuracy cannot be compared."
        words = ended if run.result is not None else "Local accuracy is measured when the run ends."
        found = clusters_figure(run)
        return Section(empty=words) if found is None else Section([found], words)
    figures = [_by_bits(known, theme), _by_images(known, theme), _by_classes(known, theme), _gains(known, theme)]
    figures = [*figures, clusters_figure(run)]
    if run.many:
        return Section([_spread(run, theme), *figures], f"{_some(run)} {_verdict(known)}")
    return Section(figures, _verdict(known))


def _some(run: RunData) -> str:
    """What is shown of a large fleet, and how to see the rest."""
    return (
        f"{counted(len(run.train), 'client')}: charts and tables by client show {len(run.clients)}, evenly spaced from the "
        f"lowest to the highest accuracy. Any other one: fedqssl report {run.path.name} --client NAME."
    )


def _spread(run: RunData, theme: Theme) -> Figure | None:
    """Of a large fleet: how the accuracies of each bitwidth are spread, over all clients that were evaluated."""
    assert run.result is not None
    found: dict[int, list[float]] = {}
    for c in run.result.clients.values():
        if c.local_accuracy is not None:
            found.setdefault(c.bits, []).append(c.local_accuracy)
    rows = []
    for bits, values in sorted(found.items()):
        cuts = [min(values), *quantiles(values, n=20)[1::4], max(values)] if len(values) > 1 else values
        words = ("lowest", "10%", "30%", "median", "70%", "90%", "highest")
        tips = [
            f"{bits_words(bits)}, {word} of {len(values)}: {percent(v)}" for word, v in zip(words, cuts, strict=False)
        ]
        points = [Point(v, theme.mark(bits), tip) for v, tip in zip(cuts, tips, strict=True)]
        rows.append(ChartRow(bits_words(bits), points, joined=True))
    chart = rows_chart(rows, percent_tick, "local accuracy", bounds=(0.0, 1.0))
    label, note = "Local accuracy of all evaluated clients by bits", "Lowest, 10, 30, 50, 70, 90%, highest."
    return Figure(
        "spread", "How accuracies are spread", label, chart, note, theme.legend(), *run.result.distributions()
    )


def _by_width(clients: Sequence[Client]) -> dict[int, list[float]]:
    """Accuracies by bitwidth."""
    return {b: [c.accuracy for c in clients if c.bits == b] for b in sorted({c.bits for c in clients})}


def _verdict(clients: Sequence[Client]) -> str:
    """As text: the worst client, the bitwidths, what accuracy correlates with, and clients no better than a guess."""
    accuracies = [c.accuracy for c in clients]
    centre, worst = fmean(accuracies), min(clients, key=lambda c: c.accuracy)
    who = f"{worst.name} ({bits_words(worst.bits)}, {counted(worst.train, 'image')})"
    if len(clients) == 1:
        lines = [f"Only the accuracy of {who} was measured: {percent(centre)}."]
    elif min(accuracies) == max(accuracies):
        lines = [f"All {len(clients)} clients have the same accuracy, {percent(centre)}."]
    else:
        below = f"{100 * (centre - worst.accuracy):.1f} points below the mean of {percent(centre)}"
        lines = [f"{who} does worst: {percent(worst.accuracy)}, {below}."]
    groups = _by_width(clients)
    if len(groups) > 1:
        means = ", ".join(f"{bits_words(b)} {percent(fmean(of))}" for b, of in groups.items())
        lines.append(f"Mean by bits: {means}.")
    if len(clients) >= MANY_ENOUGH:
        columns: dict[str, list[float]] = {
            "bits": [c.bits for c in clients],
            "number of images": [c.train for c in clients],
            "number of classes held": [c.classes for c in clients],
        }
        rhos = {key: rank_correlation(of, accuracies) for key, of in columns.items() if all(map(isfinite, of))}
        found = ", ".join(f"{key} {rho:+.2f}" for key, rho in rhos.items() if rho is not None)
        if found:
            lines.append(f"Rank correlation of accuracy over {len(clients)} clients: {found}.")
    gains = {b: [c.accuracy - c.untrained for c in clients if c.bits == b] for b in groups}
    if all(isfinite(gain) for of in gains.values() for gain in of):
        means = ", ".join(f"{bits_words(b)} {100 * fmean(of):+.1f}" for b, of in gains.items())
        lines.append(f"Mean gain over the untrained network, in points: {means}.")
    behind = [f"{c.name} ({c.best[0]} {percent(c.best[1])})" for c in clients if c.accuracy <= c.best[1] + ROUNDING]
    if behind:
        who = ", ".join(behind[:4]) + (f" and {len(behind) - 4} more" if len(behind) > 4 else "")
        lines.append(f"No better than their best control: {who}.")
    elif isfinite(clients[0].best[1]):
        lines.append("Every client does better than its best control.")
    return " ".join(lines)


def _tip(c: Client) -> str:
    between = "" if not isfinite(c.interval[0]) else f" ({' to '.join(map(percent, c.interval))})"
    words = f"{c.name}, {bits_words(c.bits)}: {percent(c.accuracy)}{between}, {counted(c.train, 'image')}"
    return f"{words} of {c.classes:.1f} effective classes" if isfinite(c.classes) else words


def control_point(c: Client, x: float | None = None) -> list[Point]:
    """A client's best control beside its accuracy, if it is known: at ``x`` in a scatter chart, else in a row."""
    name, value = c.best
    tip = f"{c.name}, best control: {name} {percent(value)}"
    place = (value, 0.0) if x is None else (x, value)
    return [Point(place[0], CONTROL[1], tip, place[1])] if isfinite(value) else []


def control_legend(clients: Sequence[Client], theme: Theme) -> list[tuple[str, Mark]]:
    """Bitwidths, and the mark of a best control if there are any."""
    return [*([CONTROL] if any(map(control_point, clients)) else []), *theme.legend()]


def _scatter(
    clients: Sequence[Client], xs: Sequence[float], theme: Theme, by: str, axis: str, note: str, **options: Any
) -> Figure:
    """Accuracy of every client against ``xs``; ``options`` are those of :func:`scatter`."""
    points = [point for c, x in zip(clients, xs, strict=True) for point in control_point(c, x)]
    points += [
        Point(x, theme.mark(c.bits), _tip(c), c.accuracy, c.interval if len(clients) <= FEW else None)
        for c, x in zip(clients, xs, strict=True)
    ]
    title, label = f"Accuracy against {by}", f"Local accuracy of every client by {axis}"
    return Figure(
        f"accuracy-{by}", title, label, scatter(points, axis, **options), note, control_legend(clients, theme)
    )


def _by_bits(clients: Sequence[Client], theme: Theme) -> Figure:
    """A strip per bitwidth; points of a strip are set side by side, so that equal ones are visible."""
    places: dict[str, float] = {}
    for i, bits in enumerate(theme.bits):
        names = sorted(c.name for c in clients if c.bits == bits)
        step = min(0.11, 0.64 / max(len(names) - 1, 1))
        places |= {name: i + step * (j - (len(names) - 1) / 2) for j, name in enumerate(names)}
    note = "Each client's own model, in its own bits, on its own held-out images"
    note += "; whiskers are Wilson intervals of one standard error." if len(clients) <= FEW else "."
    axis = {"x_form": lambda v: bits_words(theme.bits[round(v)]), "ticks": range(len(theme.bits))}
    figure = _scatter(clients, [places[c.name] for c in clients], theme, "bits", "bits", note, **axis)
    rows = [
        [bits_words(b), len(of), percent(min(of)), percent(fmean(of)), percent(max(of))]
        for b, of in _by_width(clients).items()
    ]
    return replace(figure, head=["bits", "clients", "lowest", "mean", "highest"], rows=rows)


def _image_axis(counts: Sequence[float]) -> tuple[bool, str]:
    """Whether numbers of images want a logarithmic axis, and what it is called."""
    log = min(counts) > 0 and by_orders(counts)
    return log, "training images" + (" (logarithmic)" if log else "")


def _by_images(clients: Sequence[Client], theme: Theme) -> Figure:
    counts = [float(c.train) for c in clients]
    log, axis = _image_axis(counts)
    return _scatter(clients, counts, theme, "images", axis, "Does a client with little data do worse?", log=log)


def _by_classes(clients: Sequence[Client], theme: Theme) -> Figure | None:
    known = [c for c in clients if isfinite(c.classes)]
    if not known:
        return None
    axis = "effective classes (exp of label entropy)"
    note = "A client with few classes has an easy test: compare with its best control."
    return _scatter(known, [c.classes for c in known], theme, "classes", axis, note)


def _gains(clients: Sequence[Client], theme: Theme) -> Figure | None:
    """Accuracy of every client beside its best control and the untrained network."""
    known = sorted((c for c in clients if isfinite(c.best[1])), key=lambda c: c.accuracy - c.best[1])
    if not known:
        return None
    untrained, names = ("untrained network", Mark("circle", "quiet hollow")), list(known[0].controls)
    rows = []
    for c in known:
        points = control_point(c)
        if isfinite(c.untrained):
            points.append(Point(c.untrained, untrained[1], f"{c.name}, untrained network: {percent(c.untrained)}"))
        rows.append(ChartRow(c.name, [*points, Point(c.accuracy, theme.mark(c.bits), _tip(c))], joined=True))
    legend = control_legend(known, theme)
    return Figure(
        "gain",
        "Gain over the best control",
        "Every client's accuracy beside its best control, smallest gain first",
        rows_chart(rows, percent_tick, "local accuracy", bounds=(0.0, 1.0)),
        note="What pre-training gains for each client; smallest gain on top.",
        legend=[untrained, *legend] if any(isfinite(c.untrained) for c in known) else legend,
        head=["client", *(SHORT[n] for n in names), "accuracy", "gain"],
        rows=[
            [
                c.name,
                *(percent(c.controls.get(n)) for n in names),
                percent(c.accuracy),
                f"{100 * (c.accuracy - c.best[1]):+.1f}",
            ]
            for c in known
        ],
    )


def partition(run: RunData, theme: Theme) -> Section:
    """Label heat map, and how many images each client has."""
    labels = run.labels
    if labels is None:
        if run.config.engine == FLEET:
            return Section(empty="Not known here: the clients' images and labels are on their own machines.")
        return Section(empty="The labels are unknown: the data have none, or are no longer available.")
    order = sorted(run.clients, key=lambda c: (c.bits, c.name))
    held = [sum(v > 0 for v in row) for row in labels.train.values()]
    fewest, most = min(run.train.values()), max(run.train.values())
    lead = (
        f"{counted(len(held), 'client')} {'holds' if len(held) == 1 else 'hold'} {_range(fewest, most, 'training image')} "
        f"of {_range(min(held), max(held))} of {counted(len(labels.class_names), 'class')}; "
        f"the server's unlabeled buffer has {counted(run.buffer, 'image')}."
    )
    return Section([_label_map(order, labels), _sizes(order, theme)], f"{lead} {_some(run)}" if run.many else lead)


def _range(low: int, high: int, thing: str = "") -> str:
    """``3 images``, ``3 to 5 images``."""
    last = counted(high, thing) if thing else f"{high:,}"
    return last if low == high else f"{low:,} to {last}"


def _label_map(clients: Sequence[Client], labels: Labels) -> Figure:
    """Training images by client and class."""
    many, counts = len(clients) > MANY_ROWS, [labels.train[c.name] for c in clients]
    names = [f"{c.name}, {bits_words(c.bits)}" if many else f"{c.name} · {c.bits}" for c in clients]
    tips = []
    for c, row in zip(clients, counts, strict=True):
        top = sorted(range(len(row)), key=lambda j: -row[j])[:3]
        mostly = ", ".join(f"{labels.class_names[j]} ({row[j]})" for j in top if row[j])
        tips.append(f"{c.name}, {bits_words(c.bits)}, {counted(c.train, 'image')}: mostly {mostly}")
    return Figure(
        "labels",
        "Training images by client and class",
        f"Training images of {counted(len(labels.class_names), 'class')} at {counted(len(clients), 'client')}",
        heat_map(names, labels.class_names, counts, tips, "image"),
        note="Rows are clients by bits, columns are classes; shades follow the square root of the number.",
        legend=shade_legend(max((v for row in counts for v in row), default=0), "image"),
        head=["client", *labels.class_names],
        rows=[[c.name, *row] for c, row in zip(clients, counts, strict=True)],
    )


def _sizes(clients: Sequence[Client], theme: Theme) -> Figure:
    """Training images of every client, fewest first."""
    rows = []
    for c in sorted(clients, key=lambda c: c.train):
        tip = f"{c.name}, {bits_words(c.bits)}: {c.train:,} training and {counted(c.test, 'test image')}"
        rows.append(ChartRow(c.name, [Point(float(c.train), theme.mark(c.bits), tip)]))
    counts = [float(c.train) for c in clients]
    log, axis = _image_axis(counts)
    chart = rows_chart(rows, tick, axis, log=log, bounds=None if log else (0.0, 1.05 * max(counts)))
    label = "Training images of every client, fewest first"
    return Figure("sizes", "Images of every client", label, chart, "Fewest on top.", theme.legend())


__all__ = ["clients", "control_legend", "control_point", "partition", "rank_correlation"]
