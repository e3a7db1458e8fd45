"""``summary.md``: every claim with its measurement, and the tables behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TITLES = {
    "lemma1": "Lemma 1 and Corollary 1: error variances",
    "theorem1": "Theorem 1: convergence",
    "theorem2": "Theorem 2: representability",
    "representability": "Representability of the encoders of a run",
}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _words(text: object) -> str:
    return str(text).replace("||", "‖").replace("|", "\\|")


def _claims(part: Mapping[str, Any]) -> list[str]:
    rows = [
        (_words(c["statement"]), _words(c["measured"]), "yes" if c["holds"] else "**no**")
        for c in part["claims"].values()
    ]
    return _table(("statement", "measured", "holds"), rows)


def _lemma1(part: Mapping[str, Any]) -> list[str]:
    return [
        f"Zero-mean tests: largest |z| {part['bias_z']:.2f}, threshold {part['bias_threshold']:.2f} (all tests together "
        f"reject wrongly with probability {part['bias_error_rate']:g}). "
        f"Control, always rounding down: |z| = {part['control_floor_z']:.0f}, "
        + ("rejected." if part["control_fails"] else "**not rejected**."),
        "",
    ]


_CASES = {
    **{"left": ("lhs", ".3g"), "right": ("rhs", ".3g"), "printed": ("rhs_printed", ".3g")},
    **{"max left/right": ("ratio", ".3f"), "max left/printed": ("ratio_printed", ".2f"), "G_q²": ("Gq2", ".3g")},
    **{"floor of bound": ("floor_of_bound", ".3g"), "left, last fifth": ("floor_measured", ".3g")},
}
"""Columns of Theorem 1's table: what a case calls it, and how it is printed; of a list, its value after the last round."""


def _cell(value: Any, form: str) -> str:
    return format(value[-1] if isinstance(value, list) else value, form)


def _theorem1(part: Mapping[str, Any]) -> list[str]:
    rows = [
        (name + ("" if c["asserted"] else " (reported only)"), *(_cell(c[key], form) for key, form in _CASES.values()))
        for name, c in part["cases"].items()
    ]
    c = part["control"]
    verdict = "fails the check, as it must" if part["control_fails"] else "**passes the check, and must not**"
    return [
        *_table(("case", *_CASES), rows),
        f"Control: nearest rounding, {c['bits']} bits, steps of at most {c['largest_step_in_cells']:.2f} cells, "
        f"T = {c['rounds']}: the left side goes from {c['lhs_first']:.4g} to {c['lhs_last']:.4g} "
        f"against a bound of {c['rhs_last']:.4g}; it {verdict}. "
        f"Stochastic rounding on the same grid: {c['stochastic_lhs_last']:.3g} against {c['stochastic_rhs_last']:.3g}.",
        "",
    ]


def _theorem2(part: Mapping[str, Any]) -> list[str]:
    rows = [
        (name, where, *(f"{cell[key]:.3f}" for key in ("r_min", "r_mean", "bound_min", "printed_min", "distance")))
        for name, both in part["by_bits"].items()
        for where, cell in both.items()
    ]
    spreads = [
        (f"{row['own_share']:.2f}", f"{row['self_supervised']['mean']:.3f}", f"{row['supervised']['mean']:.3f}")
        for row in part["heterogeneity"]
    ]
    c = part["control"]
    warned = [f"Warning: {part['warning']}.", ""] if part["warning"] else []
    return [
        *warned,
        *_table(("training", "model", "min r", "mean r", "min bound", "min printed", "distance to optimum"), rows),
        *_table(("own share of a client's data", "spread of r, self-supervised", "spread of r, supervised"), spreads),
        f"Control with m = {c['rank']} < n: min r = {c['r_min']:.3f} <= m/n = {c['m_over_n']:.2f}.",
        "",
    ]


def _representability(part: Mapping[str, Any]) -> list[str]:
    rows = [(name, *(f"{v:.2f}" for v in r)) for name, r in part["r"].items()]
    share = ("share of variance", *(f"{v:.2f}" for v in part["share"]))
    header = ("client", *(str(i + 1) for i in range(len(part["share"]))))
    return [
        f"S = top-{part['rank']} eigenspace of a client's features; columns are the leading directions of all features pooled "
        f"({'centred' if part['centred'] else 'not centred'}). Smallest r {part['r_min']:.3f}, mean {part['r_mean']:.3f}, "
        f"spread {part['spread']:.3f}.",
        "",
        *_table(header, [*rows, share]),
    ]


_DETAILS = {"lemma1": _lemma1, "theorem1": _theorem1, "theorem2": _theorem2, "representability": _representability}


def markdown(results: Mapping[str, Mapping[str, Any]], figures: Sequence[str]) -> str:
    """The complete page."""
    lines = ["# The paper's analysis, checked", ""]
    s = results.get("settings", {})
    if "dim" in s:
        lines += [
            f"d = {s['dim']}, n = {s['clients']}, m = {s['rank']}, bits {s['bits'][0]}..{s['bits'][-1]}, "
            f"{s['rounds']} rounds, {s['seeds']} seeds, {s['seconds']} s. "
            f"The asymptotic regime n = Θ(d^(1/20)) is {'' if s['asymptotic_regime'] else 'not '}reached.",
            "",
        ]
    for name, title in TITLES.items():
        if name not in results:
            continue
        part = results[name]
        lines += [f"## {title}", ""]
        if "claims" in part:
            lines += _claims(part)
        lines += _DETAILS[name](part)
        lines += [f"![{title}]({figure})\n" for figure in figures if figure.startswith(name)]
    return "\n".join(lines).rstrip() + "\n"
