"""What bits cost: the ledger against fp32, and the error of every layer."""

from __future__ import annotations

from statistics import median

from fedqssl.reporting.charts import Bar, ChartRow, Point, bar_chart, rows_chart
from fedqssl.reporting.costs import Costs
from fedqssl.reporting.data import RunData
from fedqssl.reporting.layers import LayerErrors
from fedqssl.reporting.parts import Figure, Section
from fedqssl.reporting.svg import Mark
from fedqssl.reporting.theme import FULL, Theme, bits_words, counted, percent, percent_tick
from fedqssl.units import bytes_text, operations_text, ratio_text

_MEASURES = (
    (
        "operations",
        "Bit operations of a step",
        operations_text,
        "Multiplying an M-bit by a K-bit number and adding the product counts M·K.",
    ),
    (
        "memory",
        "Memory of a training step",
        bytes_text,
        "Weights, saved activations, gradients, optimizer; by formula.",
    ),
    ("model", "Model on the wire", bytes_text, "Bytes of a client's model as it is sent."),
)

TUNED = 0.001
"""Errors that differ from those of rounding by more than this share are the work of fine-tuning, not of floats."""


def ledger(found: Costs | str, theme: Theme) -> Section:
    """What clients spend in their own bits, and what they would spend at full precision."""
    if isinstance(found, str):
        return Section(empty=found)
    figures = []
    for key, title, form, note in _MEASURES:
        full, bars, rows = getattr(found.amounts[FULL], key), [], []
        for bits, amounts in found.amounts.items():
            name, value = bits_words(bits), getattr(amounts, key)
            share = value / full if full else 0.0
            words = form(value) if bits == FULL else f"{form(value)} · {ratio_text(full, value)} less"
            tip = f"{name}: {form(value)}, {percent(share)} of fp32"
            bars.append(Bar(name, share, words, theme.mark(bits).kind, tip))
            rows.append([name, form(value), percent(share)])
        label, head = f"{title} by bitwidth, against fp32", ["bits", "amount", "of fp32"]
        figures.append(Figure(f"cost-{key}", title, label, bar_chart(bars, top=1.0), note, head=head, rows=rows))
    return Section(figures, _ledger_lead(found))


def _ledger_lead(found: Costs) -> str:
    operations, traffic = (ratio_text(full, ours) for ours, full in (found.operations, found.traffic))
    words = [f"Per step of {counted(found.batch, 'image')}."]
    if operations:
        carried = f" and the network carries {traffic} fewer bytes" if traffic else ""
        words.append(
            f"Over all rounds the clients do {operations} fewer bit operations than at full precision{carried}."
        )
    return " ".join([*words, found.note])


def totals(run: RunData, found: Costs) -> list[list[str]]:
    """All rounds: what it is, this run, fp32, and their ratio."""
    when = f"measured in {run.done} of {counted(run.config.rounds, 'round')}" if run.result is None else "measured"
    return [
        ["clients' bit operations", *map(operations_text, found.operations), ratio_text(*reversed(found.operations))],
        ["bytes both ways", *map(bytes_text, found.traffic), ratio_text(*reversed(found.traffic))],
        [f"bytes both ways, {when}", bytes_text(run.bytes_moved), "–", "–"],
        ["server's bit operations", operations_text(found.server_operations), "–", "–"],
    ]


def layers(found: LayerErrors | str, theme: Theme) -> Section:
    """Relative error of every layer's weights by bitwidth."""
    if isinstance(found, str):
        return Section(empty=found)
    low = min(found.layers)
    worst = max(found.layers[low], key=lambda e: e.handed_out)
    lead = (
        f"At {bits_words(low)} the layer that is furthest off is {worst.layer}: {percent(worst.handed_out)} "
        f"({percent(worst.rounding)} by rounding alone). Filled marks are what clients get; hollow marks are the aggregated "
        "weights rounded to nearest."
    )
    if any(abs(e.handed_out - e.rounding) > TUNED * e.rounding for errors in found.layers.values() for e in errors):
        lead += " The difference is the server's low-bit fine-tuning, which moves weights on purpose."
    return Section([_layer_figure(found, theme), _median_figure(found, theme)], lead, loose=True)


def _layer_figure(found: LayerErrors, theme: Theme) -> Figure:
    rows, data = [], []
    for errors in zip(*found.layers.values(), strict=True):
        points, of = [], errors[0]
        for bits, e in zip(found.layers, errors, strict=True):
            words, mark = f"{e.layer}, {bits_words(bits)}", theme.mark(bits)
            hollow = Mark(mark.shape, f"{mark.kind} hollow")
            points.append(Point(e.rounding, hollow, f"{words}: rounding alone {percent(e.rounding, 2)}"))
            points.append(Point(e.handed_out, mark, f"{words}: handed out {percent(e.handed_out, 2)}"))
        rows.append(ChartRow(of.layer.removeprefix("encoder."), [p for p in points if 0 < p.x < float("inf")]))
        shown = [percent(v, 2) for e in errors for v in (e.handed_out, e.rounding)]
        data.append([of.layer, f"{of.weights:,}", *shown])
    entries = [(bits_words(b), theme.mark(b)) for b in found.layers]
    return Figure(
        "layer-errors",
        "Every layer",
        f"Relative error of the weights of {counted(len(rows), 'layer')} by bitwidth",
        rows_chart(rows, percent_tick, "|q − w| / |w|, logarithmic", log=True),
        note=f"Packed weights q against the aggregated float weights w after round {found.round_number}.",
        legend=[*entries, ("rounding alone", Mark("circle", "quiet hollow"))],
        head=["layer", "weights", *(name + what for name, _ in entries for what in ("", ", rounding alone"))],
        rows=data,
    )


def _median_figure(found: LayerErrors, theme: Theme) -> Figure:
    bars = []
    for bits, errors in found.layers.items():
        value, alone, name = median(e.handed_out for e in errors), median(e.rounding for e in errors), bits_words(bits)
        words = f"{percent(value, 2)} · rounding alone {percent(alone, 2)}"
        tip = f"{name}, {found.clients[bits]}: median layer {words}"
        bars.append(Bar(name, value, words, theme.mark(bits).kind, tip))
    who = ", ".join(f"{name} for {bits_words(b)}" for b, name in found.clients.items())
    label, head, rows = (
        "Error of the median layer by bitwidth",
        ["bits", "median layer"],
        [[b.name, b.words] for b in bars],
    )
    return Figure(
        "median-errors", "The median layer", label, bar_chart(bars), f"Models of {who}.", head=head, rows=rows
    )


__all__ = ["layers", "ledger", "totals"]
