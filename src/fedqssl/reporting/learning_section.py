"""Training: curves, aggregation weights, indicators of collapse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median

from fedqssl.evaluation.collapse import MIN_RANK, Collapse
from fedqssl.evaluation.controls import SHORT
from fedqssl.reporting.charts import ChartRow, Level, Point, Series, line_chart, rows_chart
from fedqssl.reporting.data import RunData, short_best
from fedqssl.reporting.fleet_figures import clock_figures
from fedqssl.reporting.parts import Figure, Section
from fedqssl.reporting.svg import Mark
from fedqssl.reporting.theme import Theme, bits_words, counted, percent, percent_tick, plain, tick

CROWD = 24
"""Above this number of clients lines are faint, and medians are shown."""
SPREAD = 0.1
"""Weights within this share of 1/K are called nearly equal."""


def _by_round(lines: Sequence[Sequence[tuple[float, float]]]) -> dict[float, list[float]]:
    """The values of several lines by round, oldest first."""
    found: dict[float, list[float]] = {}
    for number, value in sorted(point for line in lines for point in line):
        found.setdefault(number, []).append(value)
    return found


def _client_lines(run: RunData, theme: Theme, key: str, what: str) -> list[Series]:
    """A line per client; for many clients also the median of each bitwidth."""
    crowd, found = len(run.clients) > CROWD, []
    if run.many:
        return _medians(run, theme, key)
    for client in run.clients:
        points = run.over_rounds(key, client.name)
        if points:
            values, mark = [v for _, v in points], theme.mark(client.bits)
            tip = f"{client.name}, {bits_words(client.bits)}: {what} {min(values):.4g} to {max(values):.4g}, "
            mark = Mark(mark.shape, f"{mark.kind}{' faint' if crowd else ''}")
            found.append(Series(client.name, points, mark, tip=f"{tip}last {values[-1]:.4g}"))
    for bits in theme.bits if crowd and found else ():
        of = [s.points for s in found if run.bits.get(s.name) == bits and not s.strong]
        middle = [(number, median(values)) for number, values in _by_round(of).items()]
        found.append(
            Series(f"median of {bits_words(bits)}", middle, Mark("circle", theme.mark(bits).kind), strong=True)
        )
    return found


def _medians(run: RunData, theme: Theme, key: str) -> list[Series]:
    """Of a large fleet: the median of the clients of each bitwidth that took part in a round."""
    found: dict[int, list[tuple[float, float]]] = {}
    for line in run.rounds:
        values: dict[int, list[float]] = {}
        for name, value in (line.get(key) or {}).items():
            last = value[-1] if isinstance(value, list) and value else value
            if isinstance(last, (int, float)) and name in run.bits:
                values.setdefault(run.bits[name], []).append(last)
        for bits, of in values.items():
            found.setdefault(bits, []).append((float(line["round"]), median(of)))
    return [
        Series(f"median of {bits_words(b)}", of, Mark("circle", theme.mark(b).kind), strong=True)
        for b, of in sorted(found.items())
    ]


def _numbers(lines: Sequence[Series], average: Series | None = None) -> tuple[list[str], list[list[str]]]:
    """The lowest, middle and highest client of every round, and the average if there is one: columns and rows."""
    values, means = _by_round([s.points for s in lines if not s.strong]), dict(average.points) if average else {}
    rows = []
    for number in sorted({*values, *means}):
        of = values.get(number)
        spread = (min(of), median(of), max(of)) if of else (None, None, None)
        rows.append([f"{number:g}", *(plain(v, 4) for v in ((means.get(number), *spread) if average else spread))])
    return ["round", *(["mean"] if average else []), "lowest client", "median client", "highest client"], rows


def _medians_note(run: RunData) -> str:
    return " Coloured bold lines: the median client of each bitwidth." if len(run.clients) > CROWD else ""


def loss_figure(run: RunData, theme: Theme, name: str) -> Figure | None:
    """Loss of every client and their mean."""
    points = run.over_rounds("loss")
    if not points:
        return None
    lines = _client_lines(run, theme, "client_loss", "loss")
    label = f"Training loss over {counted(len(points), 'round')}, from {points[0][1]:.3f} to {points[-1][1]:.3f}"
    average = Series("mean loss", points, Mark("circle", "ink"), strong=True)
    chart, numbers = line_chart([*lines, average], tick), _numbers(lines, average)
    if not lines:
        return Figure(name, "Loss", label, chart, "Loss of the server's training.", (), *numbers)
    note = "Every client, and their mean (bold), in the last local epoch of each round." + _medians_note(run)
    return Figure(name, "Loss", label, chart, note, theme.legend(), *numbers)


def accuracy_figure(run: RunData, name: str) -> Figure | None:
    """Accuracy of kNN over rounds, with the final accuracies."""
    knn, result = run.over_rounds("knn"), run.result
    last, series, entries, rows = float(run.done or 1), [], [], []
    if knn:
        series.append(Series("kNN", knn, Mark("circle", "knn"), strong=True))
        entries.append(("kNN of the aggregated model", Mark("circle", "knn")))
        rows += [[f"round {n:g}, kNN", percent(v)] for n, v in knn]
    if result is not None:
        for value, words, mark in (
            (result.global_accuracy, "global, at the end", Mark("diamond", "accent")),
            (result.local_accuracy, "mean local, at the end", Mark("square", "local")),
        ):
            if value is not None:
                series.append(Series(words, [(last, value)], mark, strong=True))
                entries.append((f"{words}: {percent(value)}", mark))
                rows.append([words, percent(value)])
    if not series:
        return None
    label = "Accuracy over rounds" + (f": kNN from {percent(knn[0][1])} to {percent(knn[-1][1])}" if knn else "")
    note = "kNN is a cheap estimate on some of the images. Global and local accuracy are measured "
    note += "when the run ends." if result is None else "once, at the end."
    floor = run.last("untrained_knn")
    levels = [Level(floor, f"kNN, untrained: {percent(floor)}")] if isfinite(floor) else []
    for which, controls in run.controls.items():
        best, value = short_best(controls)
        if isfinite(value):
            levels.append(Level(value, f"{which}, best control: {best} {percent(value)}"))
    rows += [[level.words.rpartition(" ")[0].removesuffix(":"), percent(level.value)] for level in levels]
    chart = line_chart(series, percent_tick, levels=levels)
    return Figure(name, "Accuracy", label, chart, note, entries, ["measured", "accuracy"], rows)


def controls_figure(run: RunData) -> Figure | None:
    """Global and mean local accuracy among their controls, best first."""
    marks = {"global": Mark("diamond", "accent"), "local": Mark("square", "local")}
    found = {which: {SHORT[name]: v for name, v in controls.items()} for which, controls in run.controls.items()}
    if run.result is None or not any(found.values()):
        return None
    this = {"global": run.result.global_accuracy, "local": run.result.local_accuracy}
    for which, value in this.items():
        found[which] |= {"this run": value} if value is not None else {}
    names = sorted({*found["global"], *found["local"]}, key=lambda n: -found["global"].get(n, 0.0))
    words = {"global": "global", "local": "mean local"}
    rows = [
        ChartRow(
            n, [Point(of[n], marks[w], f"{n}, {words[w]}: {percent(of[n])}") for w, of in found.items() if n in of]
        )
        for n in names
    ]
    return Figure(
        "controls",
        "This run among its controls",
        "Global and mean local accuracy of this run and of its controls, best first",
        rows_chart(rows, percent_tick, "accuracy", bounds=(0.0, 1.0)),
        note="Controls see the same images and labels, without pre-training. Best global accuracy on top.",
        legend=[(words[which], mark) for which, mark in marks.items()],
        head=["method", *words.values()],
        rows=[[n, *(percent(of.get(n)) for of in found.values())] for n in names],
    )


def _dequantize_figure(run: RunData, theme: Theme) -> Figure | None:
    lines = _client_lines(run, theme, "dequantize_loss", "de-quantized loss")
    if not lines:
        return None
    label = "Loss of every client's model after de-quantization on the server's buffer"
    note = "The loss of each received model after full-precision fine-tuning on the buffer; it sets the aggregation weights."
    note, chart = note + _medians_note(run), line_chart(lines, tick)
    return Figure("dequantize", "De-quantized loss", label, chart, note, theme.legend(), *_numbers(lines))


def curves(run: RunData, theme: Theme) -> Section:
    """Loss, accuracy and the server's view of each client."""
    figures = [loss_figure(run, theme, "loss"), accuracy_figure(run, "accuracy"), controls_figure(run)]
    figures += [_dequantize_figure(run, theme), *clock_figures(run)]
    return Section(figures) if any(figures) else Section(empty="No round is finished yet.")


def weights(run: RunData, theme: Theme) -> Section:
    """Aggregation weights over rounds, against equal shares."""
    lines = _client_lines(run, theme, "weights", "weight")
    if not lines:
        return Section(empty="This algorithm has not weighted any client's model so far.")
    shares = {float(line["round"]): 1 / len(line["weights"]) for line in run.rounds if line.get("weights")}
    values = [v for s in lines for _, v in s.points]
    between = f"between {min(values):.4g} and {max(values):.4g}"
    lead = f"Over all rounds a client's weight was {between}; an equal share is {_shares_words(shares.values())}. "
    if set(shares.values()) == {1.0}:
        lead = "One client took part in each round, so there was nothing to weight."
    elif all(abs(v - shares[n]) <= SPREAD * shares[n] for s in lines if not s.strong for n, v in s.points):
        lead += "The weighting made almost no difference: all weights are within 10% of that."
        if _dequantize_figure(run, theme) is not None:  # the losses decide
            lead += " A lower aggregation.temperature sharpens it."
    else:
        number, last = next((r["round"], r["weights"]) for r in reversed(run.rounds) if r.get("weights"))
        top = max(sorted(last), key=last.__getitem__)
        who = f"{top} ({bits_words(run.bits[top])})" if top in run.bits else top
        lead += f"In round {number}, the last one, {who} counted most: {plain(last[top], 4)}."
    title, label = (
        "Weight of every client",
        f"Aggregation weights of {counted(sum(not s.strong for s in lines), 'client')} over rounds",
    )
    course = list(shares.items()) if len(set(shares.values())) > 1 else []
    level = Level([*shares.values()][-1], "dashed: equal share", above=True, course=course)
    chart = line_chart(lines, tick, levels=[level])
    note = "One line per client; point at a line for its name." + _medians_note(run)
    figure = Figure("weights-figure", title, label, chart, note, theme.legend(), *_numbers(lines))
    return Section([figure, _weights_by_bits(run, theme)], lead)


def _shares_words(shares: Iterable[float]) -> str:
    """``0.25``, or ``0.5 (2 clients) to 0.25 (4 clients)`` if their number changed."""
    found = sorted(set(shares), reverse=True)
    if len(found) == 1:
        return f"{found[0]:.4g}"
    return " to ".join(f"{s:.4g} ({counted(round(1 / s), 'client')})" for s in (found[0], found[-1]))


def _weights_by_bits(run: RunData, theme: Theme) -> Figure | None:
    """Summed weight of each bitwidth since it joined; says nothing where bitwidths take turns."""
    weighted, lines = [(float(r["round"]), r["weights"]) for r in run.rounds if r.get("weights")], []
    for bits in theme.bits:
        held = [(n, [w for name, w in of.items() if run.bits.get(name) == bits]) for n, of in weighted]
        sums = [(n, sum(of)) for n, of in held if of]
        if not sums or [n for n, _ in sums] != [n for n, _ in weighted[-len(sums) :]]:
            return None
        lines.append(Series(bits_words(bits), sums, theme.mark(bits), strong=True))
    if len(lines) < 2:
        return None
    later = any(s.points[0][0] > weighted[0][0] for s in lines)
    return Figure(
        "weights-bits",
        "Weight of each bitwidth",
        "Summed aggregation weight of each bitwidth over rounds",
        line_chart(lines, percent_tick, zero=True),
        note="The clients of a bitwidth together"
        + (", from the round in which the first one joined." if later else "."),
        legend=theme.legend(),
        head=["bits", "first round", "last round"],
        rows=[[s.name, percent(s.points[0][1]), percent(s.points[-1][1])] for s in lines],
    )


def collapse_warnings(run: RunData) -> list[str]:
    """A warning about collapsed features, with the last round in which they were observed."""
    signals = [(int(line["round"]), line["collapse"]) for line in run.rounds if isinstance(line.get("collapse"), dict)]
    seen = [(number, words) for number, values in signals if (words := Collapse(**values).warning())]
    if not seen:
        return []
    (number, words), last = seen[-1], signals[-1][0]
    warning = f"In round {number} {words}."
    if number < last:
        warning += f" It has recovered: by round {last} the effective rank is above {MIN_RANK:g}."
    return [warning]


_SIGNALS = {
    "effective_rank": "How many directions the features really use. Near 1: collapse.",
    "alignment": "Distance between two views of an image, 0 to 4. Low is good, if uniformity is low too.",
    "uniformity": "How evenly different images spread. Low is good; 0 means that all look the same.",
}


def collapse(run: RunData) -> Section:
    """Label-free indicators over rounds."""
    figures = []
    for key, note in _SIGNALS.items():
        points, words = run.over_rounds("collapse", key), key.replace("_", " ")
        if points:
            levels = [Level(MIN_RANK, "collapse below")] if key == "effective_rank" else []
            line = Series(words.capitalize(), points, Mark("circle", "accent"), strong=True)
            chart, rows = line_chart([line], tick, levels=levels), [[f"{n:g}", plain(v, 4)] for n, v in points]
            name, head = key.replace("_", "-"), ["round", words]
            figures.append(Figure(name, line.name, f"{line.name} over rounds", chart, note, head=head, rows=rows))
    if not figures:
        return Section(
            empty="Not measured yet: this is done with every kNN accuracy (evaluation.knn_every rounds; never if that is 0)."
        )
    rank, dim = run.last("collapse", "effective_rank"), run.last("collapse", "dim")
    alerts = collapse_warnings(run)
    return Section(figures, "" if alerts else f"No: the features use about {rank:.1f} of {dim:.0f} directions.", alerts)


__all__ = ["accuracy_figure", "collapse", "collapse_warnings", "curves", "loss_figure", "weights"]
