"""One figure per check; needs matplotlib (the ``plots`` extra) and does without if it is absent.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; line styles repeat what colours say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
BY_BITS = (RED, ORANGE, GREEN, BLUE, BLACK)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(results: Mapping[str, Mapping[str, Any]], out: Path) -> list[str]:
    """Draw a figure for every part there is; returns the names of the files, none without matplotlib."""
    pyplot = _pyplot()
    if pyplot is None:
        return []
    names = []
    for part, make in FIGURES.items():
        if part in results:
            figure = make(pyplot, results[part])
            figure.savefig(out / f"{part}.png", dpi=110)
            pyplot.close(figure)
            names.append(f"{part}.png")
    return names


def _lemma1(pyplot: Any, part: Mapping[str, Any]) -> Any:
    """Variance against R: off-grid quantizers, weight errors in both regimes, quantile gradients."""
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    bits, v, slopes = part["curves"]["bits"], part["curves"]["variance"], part["slopes"]
    panels = (
        ("Off-grid weights (Gaussian)", (("uniform", ORANGE), ("tanh", BLUE), ("optimal", GREEN)), 2),
        (
            "One step from the grid",
            (("weight, large step", ORANGE), ("weight, small step", BLUE), ("server, small step", GREEN)),
            1,
        ),
        ("Quantile gradients", (("gradient laplace", RED), ("gradient gauss", BLUE), ("gradient uniform", GREEN)), 1),
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
        axis.set(title=title, xlabel="bits R", ylabel="error variance per entry")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower left")
    return figure


def _quantized(part: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(n, c) for n, c in part["cases"].items() if c["steps"] == kind and c["asserted"]]


def _theorem1(pyplot: Any, part: Mapping[str, Any]) -> Any:
    """Both sides over rounds for both step rules; the floors; the control."""
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axis, kind, words in ((axes[0, 0], "constant", "constant steps"), (axes[0, 1], "sqrt", "steps ~ 1/√t")):
        for (name, case), colour in zip(_quantized(part, kind), BY_BITS, strict=False):
            rounds, full = range(1, len(case["lhs"]) + 1), case["bits"] > 16
            wide = (
                {"linewidth": 5, "alpha": 0.25} if full else {}
            )  # else it would cover the line of the highest bitwidth
            axis.plot(rounds, case["lhs"], color=colour, label=name.split(",")[0], **wide)
            axis.plot(rounds, case["rhs"], color=colour, linestyle="--", linewidth=1)
            axis.plot(rounds, case["rhs_printed"], color=colour, linestyle=":", linewidth=1)
        axis.set(title=f"Theorem 1, {words}, E = 1", xlabel="rounds T", ylabel="squared gradient of the envelope")
        axis.set_yscale("log")
        axis.set_ylim(top=30 * axis.get_ylim()[1])  # room for the legend
        axis.plot([], [], color="0.4", label="left side")
        axis.plot([], [], color="0.4", linestyle="--", label="bound (proof)")
        axis.plot([], [], color="0.4", linestyle=":", label="bound as printed")
        axis.legend(fontsize=7, ncols=2)
    _floors(axes[1, 0], part)
    _control(axes[1, 1], part["control"])
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure


def _floors(axis: Any, part: Mapping[str, Any]) -> None:
    for kind, colour, style in (("constant", BLUE, "o"), ("sqrt", RED, "s")):
        chosen = [c for _, c in _quantized(part, kind) if c["bits"] <= 16]
        bits = [c["bits"] for c in chosen]
        axis.plot(
            bits, [c["floor_of_bound"] for c in chosen], f"{style}--", color=colour, label=f"floor of the bound, {kind}"
        )
        axis.plot(
            bits,
            [c["floor_measured"] for c in chosen],
            f"{style}-",
            color=colour,
            label=f"left side, last fifth, {kind}",
        )
    axis.set_yscale("log")
    axis.set(title="What quantization leaves", xlabel="bits R", ylabel="squared gradient of the envelope")
    axis.legend(fontsize=8)


def _control(axis: Any, control: Mapping[str, Any]) -> None:
    rounds = range(1, len(control["lhs"]) + 1)
    axis.plot(rounds, control["lhs"], color=RED, label="left side, nearest")
    axis.plot(rounds, control["rhs"], color=RED, linestyle="--", label="its bound (proof)")
    axis.plot(rounds, control["stochastic_lhs"], color=BLUE, label="left side, stochastic")
    axis.set_yscale("log")
    axis.set_xscale("log")
    axis.set(title=f"Control: steps below half a cell, {control['bits']} bits", xlabel="rounds T")
    axis.legend(fontsize=8)


def _theorem2(pyplot: Any, part: Mapping[str, Any]) -> Any:
    """Representability against R, evenness against heterogeneity, and E[X_k] beside the printed one."""
    figure = pyplot.figure(figsize=(11, 7.6), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    _by_bits(figure.add_subplot(grid[0, :3]), part["by_bits"])
    _evenness(figure.add_subplot(grid[0, 3:]), part["heterogeneity"])
    cov = part["covariance"]
    top = max(max(map(max, cov[key])) for key in ("sample", "expected", "printed"))
    axes = [figure.add_subplot(grid[1, 2 * i : 2 * i + 2]) for i in range(3)]
    titles = ("sample", "true expectation", "as printed")
    for axis, key, title in zip(axes, ("sample", "expected", "printed"), titles, strict=True):
        image = axis.imshow(cov[key], cmap="Blues", vmin=0, vmax=top)
        _numbers(axis, cov[key], top)
        axis.set(title=f"X of client 1, first n entries: {title}", xticks=[], yticks=[])
        axis.title.set_fontsize(9)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _numbers(axis: Any, rows: Sequence[Sequence[float]], top: float) -> None:
    if len(rows) > 8:
        return
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            axis.text(
                j,
                i,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if value > 0.6 * top else "black",
            )


def _by_bits(axis: Any, table: Mapping[str, Any]) -> None:
    names = list(table)
    for where, colour, style in (("local", BLUE, "o"), ("global", RED, "s")):
        cells = [table[n][where] for n in names]
        axis.plot(names, [c["r_min"] for c in cells], f"{style}-", color=colour, label=f"smallest r, {where}")
        axis.plot(names, [c["bound_min"] for c in cells], f"{style}--", color=colour, label=f"bound for any w, {where}")
        axis.plot(
            names, [c["printed_min"] for c in cells], f"{style}:", color=colour, label=f"bound as printed, {where}"
        )
    axis.set(title="Representability after training", ylim=(0, 1.05))
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _evenness(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    share = [row["own_share"] for row in rows]
    for key, colour, style in (("self_supervised", BLUE, "o-"), ("supervised", ORANGE, "s--")):
        axis.plot(share, [row[key]["mean"] for row in rows], style, color=colour, label=key.replace("_", "-"))
        axis.fill_between(
            share, [row[key]["low"] for row in rows], [row[key]["high"] for row in rows], color=colour, alpha=0.2
        )
    axis.set(title="Spread of r over clients", xlabel="share of a client's data from its own source", ylim=(-0.02, 1))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _representability(pyplot: Any, part: Mapping[str, Any]) -> Any:
    """Representability of every client for every leading direction of the pooled features."""
    names, columns = list(part["r"]), len(part["share"])
    size = (2.5 + 0.55 * columns, 1.6 + 0.34 * len(names))
    figure, axis = pyplot.subplots(figsize=size, layout="constrained")
    rows = [part["r"][name] for name in names]
    image = axis.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            axis.text(
                j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value > 0.6 else "black"
            )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_xticks(range(columns), [f"{i + 1}\n{100 * s:.0f}%" for i, s in enumerate(part["share"])], fontsize=8)
    axis.set(title="Representability r", xlabel="leading directions of all features (share of variance)")
    figure.colorbar(image)
    return figure


FIGURES = {"lemma1": _lemma1, "theorem1": _theorem1, "theorem2": _theorem2, "representability": _representability}

__all__ = ["FIGURES", "draw"]
