"""One figure per check; needs matplotlib (the ``plots`` extra); skipped if it is not installed.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; line styles repeat the distinction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedqssl.plotting import installed, new_figure, save, subplots

BLACK, ORANGE, GREEN, BLUE, RED = "#000000", "#E69F00", "#009E73", "#0072B2", "#D55E00"
BY_BITS = (RED, ORANGE, GREEN, BLUE, BLACK)
ENVELOPE = "squared gradient of the envelope"


def draw(results: Mapping[str, Mapping[str, Any]], out: Path) -> list[str]:
    """Draw a figure for every available part; returns the names of the files, none without matplotlib."""
    if not installed():
        return []
    made = {part: make(results[part]) for part, make in FIGURES.items() if part in results}
    return [save(figure, out / f"{part}.png", dpi=110).name for part, figure in made.items()]


def _finish(axis: Any, legend: Mapping[str, Any] | None = None, **labels: Any) -> None:
    """Scales, labels and limits as given, a light grid and a legend."""
    axis.set(**labels)
    axis.grid(alpha=0.3)
    axis.legend(**{"fontsize": 8, **(legend or {})})


def _numbers(axis: Any, rows: Sequence[Sequence[float]], fontsize: int, top: float = 1.0) -> None:
    """Every entry as a number, readable on light and dark blue."""
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            colour = "white" if value > 0.6 * top else "black"
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=fontsize, color=colour)


def _lemma1(part: Mapping[str, Any]) -> Any:
    """Variance against R: off-grid quantizers, weight errors in both regimes, quantile gradients."""
    figure, axes = subplots(1, 3, figsize=(13, 4.2))
    bits, v, slopes = part["curves"]["bits"], part["curves"]["variance"], part["slopes"]
    steps = (("weight, large step", ORANGE), ("weight, small step", BLUE), ("server, small step", GREEN))
    gradients = (("gradient laplace", RED), ("gradient gauss", BLUE), ("gradient uniform", GREEN))
    panels = (
        ("Off-grid weights (Gaussian)", (("uniform", ORANGE), ("tanh", BLUE), ("optimal", GREEN)), 2),
        ("One step from the grid", steps, 1),
        ("Quantile gradients", gradients, 1),
    )
    for axis, (title, names, guide) in zip(axes, panels, strict=True):
        for (name, colour), style in zip(names, ("o-", "s--", "^:"), strict=True):
            label = f"{name.removeprefix('gradient ')}: slope {slopes[name]['mean']:.2f}"
            axis.plot(bits, v[name], style, color=colour, label=label, markersize=4)
        level = min(v[names[-1][0]][0], v[names[1][0]][0])
        for rate in sorted({guide, 2}):
            line = [level / 4 * 2.0 ** (-rate * (b - bits[0])) for b in bits]
            label, dashes = ("2^(-2R)", (0, (5, 3))) if rate == 2 else ("2^(-R)", (0, (1, 2)))
            axis.plot(bits, line, color="0.5", linewidth=1, linestyle=dashes, label=label)
        axis.set_yscale("log", base=2)
        _finish(axis, {"loc": "lower left"}, title=title, xlabel="bits R", ylabel="error variance per entry")
    return figure


def _asserted(part: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(n, c) for n, c in part["cases"].items() if c["steps"] == kind and c["asserted"]]


def _theorem1(part: Mapping[str, Any]) -> Any:
    """Both sides over rounds for both step rules; the floors; the control."""
    figure, axes = subplots(2, 2, figsize=(11, 8))
    sides = (("lhs", "-", "left side"), ("rhs", "--", "bound (proof)"), ("rhs_printed", ":", "bound as printed"))
    for axis, kind, words in ((axes[0, 0], "constant", "constant steps"), (axes[0, 1], "sqrt", "steps ~ 1/√t")):
        for (name, case), colour in zip(_asserted(part, kind), BY_BITS, strict=False):
            # Full precision is drawn wide: else it would cover the line of the highest bitwidth.
            wide = {"linewidth": 5, "alpha": 0.25} if case["bits"] > 16 else {}
            left = {"label": name.split(",")[0], **wide}
            for key, style, _ in sides:
                how = left if key == "lhs" else {"linewidth": 1}
                axis.plot(range(1, len(case[key]) + 1), case[key], color=colour, linestyle=style, **how)
        axis.set_yscale("log")
        axis.set_ylim(top=30 * axis.get_ylim()[1])  # room for the legend
        for _, style, label in sides:
            axis.plot([], [], color="0.4", linestyle=style, label=label)
        legend = {"fontsize": 7, "ncols": 2}
        _finish(axis, legend, title=f"Theorem 1, {words}, E = 1", xlabel="rounds T", ylabel=ENVELOPE)
    _floors(axes[1, 0], part)
    _control(axes[1, 1], part["control"])
    return figure


def _floors(axis: Any, part: Mapping[str, Any]) -> None:
    for kind, colour, style in (("constant", BLUE, "o"), ("sqrt", RED, "s")):
        chosen = [c for _, c in _asserted(part, kind) if c["bits"] <= 16]
        for key, dash, words in (
            ("floor_of_bound", "--", "floor of the bound"),
            ("floor_measured", "-", "left side, last fifth"),
        ):
            heights = [c[key] for c in chosen]
            axis.plot([c["bits"] for c in chosen], heights, style + dash, color=colour, label=f"{words}, {kind}")
    _finish(axis, yscale="log", title="What quantization leaves", xlabel="bits R", ylabel=ENVELOPE)


def _control(axis: Any, control: Mapping[str, Any]) -> None:
    rounds = range(1, len(control["lhs"]) + 1)
    axis.plot(rounds, control["lhs"], color=RED, label="left side, nearest")
    axis.plot(rounds, control["rhs"], color=RED, linestyle="--", label="its bound (proof)")
    axis.plot(rounds, control["stochastic_lhs"], color=BLUE, label="left side, stochastic")
    title = f"Control: steps below half a cell, {control['bits']} bits"
    _finish(axis, yscale="log", xscale="log", title=title, xlabel="rounds T")


def _theorem2(part: Mapping[str, Any]) -> Any:
    """Representability against R, evenness against heterogeneity, and E[X_k] beside the printed one."""
    figure = new_figure((11, 7.6))
    axes = figure.subplot_mosaic("AAABBB;CCDDEE")
    _by_bits(axes["A"], part["by_bits"])
    _evenness(axes["B"], part["heterogeneity"])
    cov = part["covariance"]
    forms = {"sample": "sample", "expected": "true expectation", "printed": "as printed"}
    top = max(max(map(max, cov[key])) for key in forms)
    below = [axes[name] for name in "CDE"]
    for axis, (key, title) in zip(below, forms.items(), strict=True):
        image = axis.imshow(cov[key], cmap="Blues", vmin=0, vmax=top)
        if len(cov[key]) <= 8:
            _numbers(axis, cov[key], 8, top)
        axis.set(title=f"X of client 1, first n entries: {title}", xticks=[], yticks=[])
        axis.title.set_fontsize(9)
    figure.colorbar(image, ax=below, shrink=0.8)
    return figure


def _by_bits(axis: Any, table: Mapping[str, Any]) -> None:
    lines = (
        ("r_min", "-", "smallest r"),
        ("bound_min", "--", "bound for any w"),
        ("printed_min", ":", "bound as printed"),
    )
    for where, colour, style in (("local", BLUE, "o"), ("global", RED, "s")):
        for key, dash, words in lines:
            heights = [both[where][key] for both in table.values()]
            axis.plot(list(table), heights, style + dash, color=colour, label=f"{words}, {where}")
    axis.tick_params(axis="x", labelsize=8)
    _finish(axis, title="Representability after training", ylim=(0, 1.05))


def _evenness(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    share = [row["own_share"] for row in rows]
    for key, colour, style in (("self_supervised", BLUE, "o-"), ("supervised", ORANGE, "s--")):
        mean, low, high = ([row[key][end] for row in rows] for end in ("mean", "low", "high"))
        axis.plot(share, mean, style, color=colour, label=key.replace("_", "-"))
        axis.fill_between(share, low, high, color=colour, alpha=0.2)
    words = "share of a client's data from its own source"
    _finish(axis, title="Spread of r over clients", xlabel=words, ylim=(-0.02, 1))


def _representability(part: Mapping[str, Any]) -> Any:
    """Representability of every client for every leading direction of the pooled features."""
    names, columns = list(part["r"]), len(part["share"])
    figure, axis = subplots(figsize=(2.5 + 0.55 * columns, 1.6 + 0.34 * len(names)))
    rows = [part["r"][name] for name in names]
    image = axis.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _numbers(axis, rows, 7)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_xticks(range(columns), [f"{i + 1}\n{100 * s:.0f}%" for i, s in enumerate(part["share"])], fontsize=8)
    axis.set(title="Representability r", xlabel="leading directions of all features (share of variance)")
    figure.colorbar(image)
    return figure


FIGURES = {"lemma1": _lemma1, "theorem1": _theorem1, "theorem2": _theorem2, "representability": _representability}
