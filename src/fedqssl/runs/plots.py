"""``curves.png`` and ``partition.png`` of a run in the look of its report; they need matplotlib (the ``plots`` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedqssl import plotting
from fedqssl.config import load_run_config
from fedqssl.federated.context import Context
from fedqssl.plotting import FULL, FULL_COLOUR, INK, KNN, RULE, SHADES, SOFT, TROUGH, by_orders
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.result import MANY

SHAPES = "os^Dv"
"""Marks of the bitwidths, fewest bits first, as in the report."""
FEW_CELLS = 240
"""Up to this number of cells each shows its count."""


def draw(context: Context, folder: RunFolder) -> list[str]:
    """Draw what can be drawn; returns the names of the files."""
    if not plotting.installed():
        return []
    drawn = {"curves.png": curves(folder, context.bits), "partition.png": _partition(context)}
    for name, figure in drawn.items():
        plotting.save(figure, folder.path / name)
    return list(drawn)


def _colours(bits: Mapping[str, int]) -> dict[int, str]:
    return {**plotting.bit_colours(bits.values()), FULL: FULL_COLOUR}


def _marks(bits: Mapping[str, int]) -> dict[int, str]:
    low = sorted(set(bits.values()) - {FULL})
    return {**{b: SHAPES[i % len(SHAPES)] for i, b in enumerate(low)}, FULL: "o"}


def _words(bits: int) -> str:
    return "fp32" if bits == FULL else f"{bits} bit{'' if bits == 1 else 's'}"


def _bits(folder: RunFolder) -> dict[str, int]:
    """Bitwidth by client, as the run's own files say."""
    noted = folder.read_json("partition.json")
    clients = noted.get("clients") if isinstance(noted, dict) else None
    return load_run_config(folder.path).bits_for(list(clients or ()))


def curves(folder: RunFolder, bits: Mapping[str, int] | None = None) -> Any:
    """Mean client loss, kNN accuracy and aggregation weights over rounds; ``bits`` by client are read if they are not given."""
    lines, bits = folder.lines(), _bits(folder) if bits is None else bits
    rounds = [line["round"] for line in lines]
    figure, axes = plotting.subplots(1, 3, figsize=(12, 3.6))
    axes[0].plot(rounds, [line["loss"] for line in lines], marker="o", markersize=4, color=INK, linewidth=2)
    plotting.dress(axes[0], "Training loss", "round", "mean loss, last epoch of the round")
    known = [(r, 100 * line["knn"]) for r, line in zip(rounds, lines, strict=True) if line["knn"] is not None]
    axes[1].plot([r for r, _ in known], [v for _, v in known], marker="o", markersize=4, color=KNN, linewidth=2)
    if lines and (floor := lines[-1].get("untrained_knn")) is not None:
        axes[1].axhline(100 * floor, color=SOFT, linestyle="--", linewidth=1, label="untrained network")
        axes[1].legend(fontsize=8, frameon=False, labelcolor=SOFT)
    plotting.dress(axes[1], "kNN accuracy of the aggregate", "round", "%")
    _weights(axes[2], lines, bits)
    for axis in axes:
        axis.grid(axis="y", color=RULE)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _weights(axis: Any, lines: Sequence[Mapping[str, Any]], bits: Mapping[str, int]) -> None:
    """A line per client in the colour of its bits; clients that take turns have no line from round to round."""
    colours, marks = _colours(bits), _marks(bits)
    named: set[int] = set()
    if len({name for line in lines for name in line["weights"]}) > MANY:
        _weights_by_bits(axis, lines, bits)
        return
    for name in sorted({name for line in lines for name in line["weights"]}):
        own = bits.get(name, FULL)
        took_part = [(line["round"], line["weights"][name]) for line in lines if name in line["weights"]]
        whole = len(took_part) == lines[-1]["round"] - took_part[0][0] + 1  # since it joined
        style = {"linestyle": "-", "linewidth": 1.4} if whole else {"linestyle": ":", "linewidth": 0.5}
        label = None if own in named else _words(own)
        look = {"color": colours[own], "marker": marks[own], "markersize": 3.5, "alpha": 0.85}
        axis.plot(*zip(*took_part, strict=True), label=label, **look, **style)
        named.add(own)
    plotting.dress(axis, "Aggregation weights", "round", "p_k")
    axis.set_ylim(0, None)
    if named:
        axis.legend(fontsize=8, ncols=2, frameon=False, labelcolor=SOFT)


def _weights_by_bits(axis: Any, lines: Sequence[Mapping[str, Any]], bits: Mapping[str, int]) -> None:
    """A point per client and round, one colour per bitwidth."""
    colours, marks, found = _colours(bits), _marks(bits), dict[int, list[tuple[int, float]]]()
    for line in lines:
        for name, weight in line["weights"].items():
            found.setdefault(bits.get(name, FULL), []).append((line["round"], weight))
    for own, points in sorted(found.items()):
        look = {"color": colours[own], "marker": marks[own], "s": 6, "alpha": 0.4}
        axis.scatter(*zip(*points, strict=True), label=_words(own), **look)
    plotting.dress(axis, "Aggregation weights", "round", "p_k")
    axis.set_ylim(0, None)
    axis.legend(fontsize=8, ncols=2, frameon=False, labelcolor=SOFT)


def _partition(context: Context) -> Any:
    """Number of training images of each class at every client."""
    counts = context.label_counts()
    if counts is None:
        return _sizes(context)
    names, words = sorted(counts), {n: f"{n} ({_words(context.bits[n])})" for n in counts}
    classes = context.train.class_names or tuple(map(str, range(len(counts[names[0]]["train"]))))
    table = [counts[n]["train"] for n in names]
    if len(names) > MANY:
        table, words = _by_bits(table, [context.bits[n] for n in names])
        names = list(words)
    figure, axis = plotting.subplots(figsize=(2.5 + 0.6 * len(classes), 1.5 + 0.32 * len(names)))
    image = axis.imshow(table, cmap=_shades(), norm=_norm(table), aspect="auto")
    axis.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axis.set_yticks(range(len(names)), [words[n] for n in names])
    scale = "logarithmic" if _is_log(table) else "by square root"
    plotting.dress(axis, f"Training images by client and class (shades {scale})")
    if len(names) * len(classes) <= FEW_CELLS:
        for i, row in enumerate(table):
            for j, count in enumerate(row):
                strong = float(image.norm(count)) > 0.5 if count else False
                axis.text(j, i, count or "", ha="center", va="center", fontsize=7, color="white" if strong else INK)
    bar = figure.colorbar(image, format="%g")
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=SOFT, labelsize=8, length=0, which="both")
    return figure


def _by_bits(table: Sequence[Sequence[int]], bits: Sequence[int]) -> tuple[list[list[int]], dict[str, str]]:
    """The counts of all clients of a bitwidth together, and what their rows are called."""
    own = {b: [row for row, of in zip(table, bits, strict=True) if of == b] for b in sorted(set(bits))}
    return [[sum(c) for c in zip(*of, strict=True)] for of in own.values()], {
        str(b): f"{len(of):,} clients ({_words(b)})" for b, of in own.items()
    }


def _is_log(table: Sequence[Sequence[int]]) -> bool:
    return by_orders([count for row in table for count in row])


def _shades() -> Any:
    """The report's shades; a cell without images has the colour of an empty one there."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("shades", SHADES)
    return shades.with_extremes(bad=TROUGH, under=TROUGH)


def _norm(table: Sequence[Sequence[int]]) -> Any:
    """Counts to shades: by orders where they differ by orders, else by square root, as in the report."""
    from matplotlib.colors import LogNorm, PowerNorm

    top = max((count for row in table for count in row), default=0)
    return LogNorm(1, max(top, 2)) if _is_log(table) else PowerNorm(0.5, 0.5, max(top, 1))


def _sizes(context: Context) -> Any:
    """Without labels: number of training images at every client."""
    names, colours = sorted(context.bits), _colours(context.bits)
    counts = [context.sizes[n] for n in names]
    if len(names) > MANY:
        figure, axis = plotting.subplots(figsize=(6, 3))
        axis.hist(counts, bins=40, color=INK)
        plotting.dress(axis, f"Training images of {len(names):,} clients (no labels)", "images", "clients")
        return figure
    figure, axis = plotting.subplots(figsize=(6, 1.5 + 0.32 * len(names)))
    log = by_orders(counts)
    axis.barh(range(len(names)), counts, color=[colours[context.bits[n]] for n in names], height=0.6, log=log)
    axis.set_yticks(range(len(names)), [f"{n} ({_words(context.bits[n])})" for n in names])
    axis.invert_yaxis()
    plotting.dress(axis, "Training images by client (they have no labels)", "logarithmic" if log else "")
    axis.grid(axis="x", color=RULE)
    return figure


__all__ = ["curves", "draw"]
