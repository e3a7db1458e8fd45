"""Parts of the page about training: curves, aggregation weights, signals of collapse."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedqssl.evaluation.collapse import MIN_RANK, Collapse
from fedqssl.report.charts import Level, Series, line_chart
from fedqssl.report.data import RunData, mean
from fedqssl.report.html import Child, Markup, el, figure, grid, join, section, table
from fedqssl.report.svg import legend
from fedqssl.report.theme import Look, bits_words, percent, percent_tick, plain, tick

CROWD = 24
"""Above this many clients lines are faint, and medians stand for them."""
SPREAD = 0.1
"""Weights within this share of 1/K are called nearly equal."""


def _client_lines(run: RunData, look: Look, key: str, what: str) -> list[Series]:
    found = []
    for client in run.clients:
        points = run.over_rounds(key, client.name)
        if points:
            low, high = min(v for _, v in points), max(v for _, v in points)
            tip = f"{client.name}, {bits_words(client.bits)}: {what} {low:.4g} to {high:.4g}, last {points[-1][1]:.4g}"
            kind = f"{look.kind(client.bits)}{' faint' if len(run.clients) > CROWD else ''}"
            found.append(Series(client.name, points, kind, tip=tip, shape=look.shape(client.bits)))
    return found


def _medians(run: RunData, look: Look, key: str) -> list[Series]:
    """Of many clients, where single lines are a thicket: the median client of each bitwidth."""
    if len(run.clients) <= CROWD:
        return []
    found = []
    for bits in look.bits:
        names = [c.name for c in run.clients if c.bits == bits]
        points: dict[float, list[float]] = {}
        for name in names:
            for number, value in run.over_rounds(key, name):
                points.setdefault(number, []).append(value)
        middle = [(number, statistics.median(values)) for number, values in sorted(points.items())]
        found.append(Series(f"median of {bits_words(bits)}", middle, look.kind(bits), strong=True))
    return found


def _medians_note(run: RunData) -> str:
    return " Coloured bold lines: the median client of each bitwidth." if len(run.clients) > CROWD else ""


def _summary_table(lines: Sequence[Series], first: Series | None, what: str) -> Markup:
    """Rounds with the lowest, middle and highest of all clients."""
    by_round: dict[float, list[float]] = {}
    for s in lines:
        for number, value in s.points:
            by_round.setdefault(number, []).append(value)
    strong = dict(first.points) if first is not None else {}
    rows = []
    for number in sorted({*by_round, *strong}):
        values = by_round.get(number, [])
        spread = [min(values), statistics.median(values), max(values)] if values else [None] * 3
        rows.append([f"{number:g}", *([plain(strong.get(number), 4)] if first else []), *(plain(v, 4) for v in spread)])
    return table(
        ["round", *(["mean"] if first else []), "lowest client", "median client", "highest client"], rows, what
    )


def loss_figure(run: RunData, look: Look, name: str) -> Markup | None:
    """Loss of every client and their mean."""
    points = run.over_rounds("loss")
    if not points:
        return None
    total = Series("mean loss", points, "ink", strong=True)
    lines = _client_lines(run, look, "client_loss", "loss")
    label = f"Training loss over {len(points)} rounds, from {points[0][1]:.3f} to {points[-1][1]:.3f}"
    note = (
        "Mean of the clients (bold) and every client, in the last local epoch of each round." + _medians_note(run)
        if lines
        else "Of the server's training."
    )
    return figure(
        name,
        "Loss",
        line_chart(label, [*lines, *_medians(run, look, "client_loss"), total], tick),
        note=note,
        legend=look.legend() if lines else None,
        data=_summary_table(lines, total, label),
    )


def accuracy_figure(run: RunData, name: str) -> Markup | None:
    """The kNN monitor over rounds, with the closing accuracies."""
    knn = run.over_rounds("knn")
    result = run.result
    ends = (
        []
        if result is None
        else [(result.global_accuracy, "global, at the end"), (result.local_accuracy, "mean local, at the end")]
    )
    known = [(v, words) for v, words in ends if v is not None]
    if not knn and not known:
        return None
    last = float(run.done or 1)
    series = [Series("kNN", knn, "knn", strong=True)] if knn else []
    kinds = {"global, at the end": ("accent", "diamond"), "mean local, at the end": ("local", "square")}
    for value, words in known:
        kind, shape = kinds[words]
        series.append(Series(words, [(last, value)], kind, strong=True, shape=shape))
    entries = [("kNN of the aggregated model", "circle", "knn")] if knn else []
    entries += [(f"{words}: {percent(v)}", kinds[words][1], kinds[words][0]) for v, words in known]
    label = "Accuracy over rounds" + (f": kNN from {percent(knn[0][1])} to {percent(knn[-1][1])}" if knn else "")
    rows: list[list[Child]] = [[f"round {n:g}, kNN", percent(v)] for n, v in knn]
    rows += [[words, percent(v)] for v, words in known]
    note = "kNN is a cheap monitor on a part of the images; global and local accuracy are measured once, at the end."
    if result is None:
        note = (
            "kNN is a cheap monitor on a part of the images. Global and local accuracy are measured when the run ends."
        )
    return figure(
        name,
        "Accuracy",
        line_chart(label, series, percent_tick),
        note=note,
        legend=legend(entries),
        data=table(["measured", "accuracy"], rows, label),
    )


def _dequantize_figure(run: RunData, look: Look) -> Markup | None:
    lines = _client_lines(run, look, "dequantize_loss", "de-quantized loss")
    if not lines:
        return None
    label = "Loss of every client's model after de-quantization on the server's buffer"
    note = "What the aggregation weights follow: the loss of each received model after full-precision fine-tuning on the buffer."
    return figure(
        "dequantize",
        "De-quantized loss",
        line_chart(label, [*lines, *_medians(run, look, "dequantize_loss")], tick),
        note=note,
        legend=look.legend(),
        data=_summary_table(lines, None, label),
    )


def curves(run: RunData, look: Look) -> Markup:
    """Loss, accuracy and the server's view of each client."""
    cards = [loss_figure(run, look, "loss"), accuracy_figure(run, "accuracy"), _dequantize_figure(run, look)]
    if not any(cards):
        return section("curves", "Learning curves", el("p", "No round is finished yet.", class_="empty"))
    return section("curves", "Learning curves", grid(*cards))


def weights(run: RunData, look: Look) -> Markup:
    """Aggregation weights over rounds, against equal shares."""
    lines = _client_lines(run, look, "weights", "weight")
    if not lines:
        words = "This algorithm has not weighted any client's model so far."
        return section("weights", "Aggregation weights", el("p", words, class_="empty"))
    share = 1 / max(mean([len(line["weights"]) for line in run.rounds if line.get("weights")]), 1)
    values = [v for s in lines for _, v in s.points]
    low, high = min(values), max(values)
    lead = f"Over all rounds a client's weight was between {low:.4g} and {high:.4g}; an equal share is {share:.4g}. "
    if max(share - low, high - share) <= SPREAD * share:
        lead += (
            "The weighting did almost nothing: all are within 10% of that. A lower aggregation.temperature sharpens it."
        )
    else:
        far = max(run.clients, key=lambda c: c.weight or 0)
        lead += f"In the last round {far.name} ({bits_words(far.bits)}) counted most: {plain(far.weight, 4)}."
    label = f"Aggregation weights of {len(lines)} clients over rounds"
    chart = line_chart(
        label, [*lines, *_medians(run, look, "weights")], tick, levels=[Level(share, "dashed: equal share", above=True)]
    )
    by_bits = _weights_by_bits(run, look)
    card = figure(
        "weights-figure",
        "Weight of every client",
        chart,
        note="One line per client; point at a line for its name." + _medians_note(run),
        legend=look.legend(),
        data=_summary_table(lines, None, label),
    )
    return section("weights", "Aggregation weights", grid(card, by_bits), lead=lead)


def _weights_by_bits(run: RunData, look: Look) -> Markup | None:
    """Summed weight of each bitwidth."""
    if len(look.bits) < 2:
        return None
    lines = []
    for bits in look.bits:
        names = {c.name for c in run.clients if c.bits == bits}
        sums = [
            (float(r["round"]), sum(w for n, w in r["weights"].items() if n in names))
            for r in run.rounds
            if r.get("weights")
        ]
        lines.append(Series(bits_words(bits), sums, look.kind(bits), strong=True, shape=look.shape(bits)))
    label = "Summed aggregation weight of each bitwidth over rounds"
    rows = [[s.name, percent(s.points[0][1]), percent(s.points[-1][1])] for s in lines]
    return figure(
        "weights-bits",
        "Weight of each bitwidth",
        line_chart(label, lines, percent_tick, zero=True),
        note="The clients of a bitwidth together.",
        legend=look.legend(),
        data=table(["bits", "first round", "last round"], rows, label),
    )


def collapse_warnings(run: RunData) -> list[str]:
    """Plain words about collapsed features, with the rounds in which they were seen."""
    seen = []
    for line in run.rounds:
        signals = line.get("collapse")
        if isinstance(signals, dict):
            found = Collapse(**signals).warning()
            if found:
                seen.append((int(line["round"]), found))
    if not seen:
        return []
    last = run.over_rounds("collapse", "effective_rank")[-1][0]
    number, words = seen[-1]
    when = f"In round {number} {words}."
    if number < last:
        when += f" It has recovered: by round {last:g} the effective rank is above {MIN_RANK:g}."
    return [when]


_SIGNALS = (
    ("effective_rank", "Effective rank", "How many directions the features really use. Near 1: collapse."),
    (
        "alignment",
        "Alignment",
        "Distance between two views of an image, 0 to 4. Low is good, if uniformity is low too.",
    ),
    ("uniformity", "Uniformity", "How evenly different images spread. Low is good; 0 means that all look the same."),
)


def collapse(run: RunData) -> Markup:
    """Label-free signals over rounds."""
    cards = []
    for key, title, note in _SIGNALS:
        points = run.over_rounds("collapse", key)
        if not points:
            continue
        levels = [Level(MIN_RANK, "collapse below")] if key == "effective_rank" else []
        chart = line_chart(f"{title} over rounds", [Series(title, points, "accent", strong=True)], tick, levels=levels)
        rows = [[f"{n:g}", plain(v, 4)] for n, v in points]
        cards.append(
            figure(
                key.replace("_", "-"),
                title,
                chart,
                note=note,
                data=table(["round", key.replace("_", " ")], rows, title),
            )
        )
    if not cards:
        words = "There are no signals: the run has no aggregated model so far, or evaluation.knn_every is 0."
        return section("collapse", "Have the features collapsed?", el("p", words, class_="empty"))
    warnings = collapse_warnings(run)
    told = join(el("p", w, class_="alert", role="alert") for w in warnings)
    rank, dim = run.over_rounds("collapse", "effective_rank")[-1][1], run.over_rounds("collapse", "dim")[-1][1]
    lead = None if warnings else f"No: the features use about {rank:.1f} of {dim:.0f} directions."
    return section("collapse", "Have the features collapsed?", told, grid(*cards), lead=lead)


__all__ = ["accuracy_figure", "collapse", "collapse_warnings", "curves", "loss_figure", "weights"]
