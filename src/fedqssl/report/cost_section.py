"""Parts of the page about what bits cost: the ledger against fp32, and the error of every layer."""

from __future__ import annotations

import statistics

from fedqssl.report.charts import Bar, Point, Row, bar_chart, rows_chart
from fedqssl.report.costs import FULL, Costs
from fedqssl.report.data import RunData
from fedqssl.report.html import Markup, el, figure, grid, section, table
from fedqssl.report.layers import LayerErrors
from fedqssl.report.svg import legend
from fedqssl.report.theme import Look, bits_words, percent, percent_tick
from fedqssl.units import bytes_text, operations_text, ratio_text

_MEASURES = (
    ("operations", "Bit operations of a step", operations_text, "An M-bit by K-bit multiply-accumulate counts M·K."),
    (
        "memory",
        "Memory of a training step",
        bytes_text,
        "Weights, saved activations, gradients, optimiser; by formula.",
    ),
    ("model", "Model on the wire", bytes_text, "Length of the container with a client's packed model."),
)


def ledger(run: RunData, found: Costs | str, look: Look) -> Markup:
    """What clients spend in their own bits, and what they would spend at full precision."""
    title = "Cost against full precision"
    if isinstance(found, str):
        return section("ledger", title, el("p", found, class_="empty"))
    cards = []
    for key, name, form, note in _MEASURES:
        full = getattr(found.full, key)
        amounts = {**{b: getattr(a, key) for b, a in sorted(found.widths.items())}, FULL: full}
        bars = [
            Bar(
                bits_words(b),
                value / full if full else 0.0,
                form(value) if b == FULL else f"{form(value)} · {ratio_text(full, value)} less",
                look.kind(b),
                f"{bits_words(b)}: {form(value)}, {percent(value / full if full else None)} of fp32",
            )
            for b, value in amounts.items()
        ]
        rows = [[bits_words(b), form(v), percent(v / full if full else None)] for b, v in amounts.items()]
        label = f"{name} by bitwidth, against fp32"
        cards.append(
            figure(
                f"cost-{key}",
                name,
                bar_chart(label, bars, top=1.0),
                note=note,
                data=table(["bits", "amount", "of fp32"], rows, label),
            )
        )
    return section("ledger", title, grid(*cards), _totals(run, found), lead=_lead(found))


def _lead(found: Costs) -> str:
    operations, traffic = (ratio_text(full, ours) for ours, full in (found.operations, found.traffic))
    words = [f"Per step of {found.batch} images."]
    if operations:
        words.append(f"Over all rounds the clients do {operations} fewer bit operations than in full precision")
        words[-1] += f" and the network carries {traffic} fewer bytes." if traffic else "."
    return " ".join([*words, found.note])


def _totals(run: RunData, found: Costs) -> Markup:
    rounds = run.config.rounds
    when = f"measured in {run.done} of {rounds} rounds" if run.result is None else "measured"
    rows = [
        [
            "clients' bit operations",
            *map(operations_text, found.operations),
            ratio_text(found.operations[1], found.operations[0]),
        ],
        ["bytes both ways", *map(bytes_text, found.traffic), ratio_text(found.traffic[1], found.traffic[0])],
        [f"bytes both ways, {when}", bytes_text(run.bytes_moved), "–", "–"],
        ["server's bit operations", operations_text(found.server_operations), "–", "–"],
    ]
    head = [f"all {rounds} rounds" if rounds > 1 else "1 round", "this run", "fp32", "fp32 / this run"]
    return el("div", el("h3", "In total"), table(head, rows, "Totals of all rounds"), class_="card full")


def layers(found: LayerErrors | str, look: Look) -> Markup:
    """Relative error of every layer's weights by bitwidth."""
    title = "Quantization error by layer"
    if isinstance(found, str):
        return section("layers", title, el("p", found, class_="empty"))
    names = [error.layer for error in next(iter(found.layers.values()))]
    rows = []
    for name in names:
        points = []
        for bits, errors in found.layers.items():
            e = next(e for e in errors if e.layer == name)
            words = f"{name}, {bits_words(bits)}"
            points.append(
                Point(
                    e.rounding,
                    0,
                    look.shape(bits),
                    look.kind(bits),
                    f"{words}: rounding alone {percent(e.rounding, 2)}",
                    hollow=True,
                )
            )
            points.append(
                Point(
                    e.handed_out,
                    0,
                    look.shape(bits),
                    look.kind(bits),
                    f"{words}: handed out {percent(e.handed_out, 2)}",
                )
            )
        rows.append(Row(_short(name), [p for p in points if 0 < p.x < float("inf")]))
    label = f"Relative error of the weights of {len(names)} layers by bitwidth"
    chart = rows_chart(label, rows, percent_tick, "|q − w| / |w|, logarithmic", log=True)
    entries = [(bits_words(b), look.shape(b), look.kind(b)) for b in found.layers]
    entries.append(("rounding alone", "circle", "quiet hollow"))
    head = ["layer", "weights", *(f"{bits_words(b)}{what}" for b in found.layers for what in ("", ", rounding alone"))]
    data = []
    for i, name in enumerate(names):
        of = [errors[i] for errors in found.layers.values()]
        data.append([name, f"{of[0].weights:,}", *(percent(v, 2) for e in of for v in (e.handed_out, e.rounding))])
    note = f"Packed weights q against the aggregated float weights w after round {found.round_number}."
    card = figure(
        "layer-errors", "Every layer", chart, note=note, legend=legend(entries), data=table(head, data, label)
    )
    return section("layers", title, grid(card, _median_card(found, look), loose=True), lead=_layer_lead(found))


def _layer_lead(found: LayerErrors) -> str:
    low = min(found.layers)
    worst = max(found.layers[low], key=lambda e: e.handed_out)
    lead = f"At {bits_words(low)} the layer furthest off is {worst.layer}: {percent(worst.handed_out)}"
    lead += f" ({percent(worst.rounding)} by rounding alone). Filled marks are what clients get; hollow marks are the aggregated "
    return (
        lead
        + "weights rounded to nearest. What lies between is the server's low-bit fine-tuning, which moves weights on purpose."
    )


def _median_card(found: LayerErrors, look: Look) -> Markup:
    bars = []
    for bits, errors in found.layers.items():
        value = statistics.median(e.handed_out for e in errors)
        alone = statistics.median(e.rounding for e in errors)
        words = f"{percent(value, 2)} · rounding alone {percent(alone, 2)}"
        bars.append(
            Bar(
                bits_words(bits),
                value,
                words,
                look.kind(bits),
                f"{bits_words(bits)}, {found.clients[bits]}: median layer {words}",
            )
        )
    label = "Error of the median layer by bitwidth"
    who = ", ".join(f"{name} for {bits_words(b)}" for b, name in found.clients.items())
    data = table(["bits", "median layer"], [[b.name, b.words] for b in bars], label)
    return figure("median-errors", "The median layer", bar_chart(label, bars), note=f"Models of {who}.", data=data)


def _short(name: str) -> str:
    return name.removeprefix("encoder.")


__all__ = ["layers", "ledger"]
