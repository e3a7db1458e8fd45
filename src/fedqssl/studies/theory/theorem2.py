"""Theorem 2 as an experiment: representability of clients and of the global model after quantized training.

Clients train alone on ``||X_k - w^T w||^2`` (the theorem's local part), the global model by quantized FedAvg; data of App. A.4.
``r^k`` is asked for directions i in [n] \\ {k}, ``r-bar`` for all i in [n]. ``holds`` refers to the bound that is true for any w,
``r_j >= ||w e_j||^2 / ||w^T w||_2``, and to r <= 1; the printed bound is shown with its O(.) terms left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedqssl.evaluation.statistics import Estimate
from fedqssl.studies.theory.claims import Claim, claim
from fedqssl.studies.theory.data import TheoryData, blended_data, client_data, expected_covariance, printed_covariance
from fedqssl.studies.theory.fedavg import Steps, TheoryPrecision, initial_weights, run_fedavg
from fedqssl.studies.theory.model import align, covariance, eigen, global_covariance, optimum
from fedqssl.studies.theory.quantizers import FULL
from fedqssl.studies.theory.randomness import generator
from fedqssl.studies.theory.representability import lower_bound, printed_bound, representability, spread
from fedqssl.studies.theory.settings import Say, Settings, silent
from fedqssl.studies.theory.supervised import supervised_features

ByBits = dict[str, dict[str, dict[str, float]]]
"""``{"8 bits": {"local": ..., "global": ...}}``."""

ROUNDING = 1e-9
LOCAL = 2
"""Local steps per round of the settings: a client's smallest eigenvalue of interest is learned slowly."""

PRESENT = 0.5
"""A direction counts as represented above this; n directions in a space of m < n dimensions cannot all exceed m/n."""


@dataclass(frozen=True, eq=False)
class Learned:
    """r of one model for the directions asked of it, with both bounds and the distance to the optimum."""

    r: Tensor
    bound: Tensor
    printed: Tensor
    printed_loose: Tensor
    distance: float


def _train(X: Sequence[Tensor], m: int, bits: int, rounds: int, gen: torch.Generator, local: bool = False) -> Tensor:
    """Quantized training with step 1/(16 lambda_1): FedAvg, or ``2 rounds`` local steps of a single client."""
    X_bar = global_covariance(X, torch.full((len(X),), 1 / len(X)))
    steps = Steps(1 / (16 * float(eigen(X_bar)[0][0])))
    w0 = initial_weights(m, X_bar.shape[0], gen)
    turns = (1, LOCAL * rounds) if local else (rounds, 1)
    return run_fedavg(w0, X, steps, turns[0], TheoryPrecision(bits), gen, local_steps=turns[1]).final


def _learned(w: Tensor, X: Tensor, asked: list[int], diagonal: float, order: float) -> Learned:
    best = optimum(X, w.shape[0])
    w = align(w, best)
    printed, loose = (printed_bound(w, best, diagonal, o)[asked] for o in (0.0, order))
    return Learned(representability(w)[asked], lower_bound(w)[asked], printed, loose, float((w - best).norm()))


def local_model(settings: Settings, X: Tensor, k: int, bits: int, seed: int) -> Learned:
    """Client k after training alone at R bits."""
    w = _train([X], settings.m, bits, settings.rounds, generator(seed, "local", k, bits), local=True)
    others = [i for i in range(settings.clients) if i != k]
    return _learned(w, X, others, settings.sources.tau**2, settings.sources.mu**2)


def global_model(settings: Settings, X: list[Tensor], bits: int, seed: int, m: int | None = None) -> Learned:
    """The model of quantized FedAvg at R bits (and rank m, if it is not that of the settings)."""
    n = settings.clients
    rank = settings.m if m is None else m
    w = _train(X, rank, bits, settings.rounds, generator(seed, "global", rank, bits))
    diagonal = ((n - 1) * settings.sources.tau**2 + 1) / n
    X_bar = global_covariance(X, torch.full((n,), 1 / n))
    return _learned(w, X_bar, list(range(n)), diagonal, settings.sources.mu**2)


def _summary(models: list[Learned]) -> dict[str, float]:
    r = torch.cat([m.r for m in models])
    bound, printed = torch.cat([m.bound for m in models]), torch.cat([m.printed for m in models])
    return {
        "r_min": float(r.min()),
        "r_mean": float(r.mean()),
        "bound_min": float(bound.min()),
        "bound_gap_min": float((r - bound).min()),
        "printed_min": float(printed.min()),
        "printed_max": float(printed.max()),
        "printed_gap_min": float((r - printed).min()),
        "printed_loose_gap_min": min(float((m.r - m.printed_loose).min()) for m in models),
        "distance": sum(m.distance for m in models) / len(models),
    }


def _draw(settings: Settings, seed: int) -> list[TheoryData]:
    return [client_data(settings.sources, k, generator(seed, "data", k)) for k in range(settings.clients)]


def by_bits(settings: Settings, say: Say = silent) -> ByBits:
    """What local and global models represent over bitwidths, all seeds together."""
    data = [[c.covariance for c in _draw(settings, seed)] for seed in range(settings.seeds)]
    found = {}
    for bits in (*settings.training_bits, FULL):
        name = "full precision" if bits == FULL else f"{bits} bits"
        say(f"theorem 2: {name}, {settings.clients} clients and the global model x {settings.seeds} seeds")
        pairs = [(seed, k) for seed in range(settings.seeds) for k in range(settings.clients)]
        found[name] = {
            "local": _summary([local_model(settings, data[s][k], k, bits, s) for s, k in pairs]),
            "global": _summary([global_model(settings, X, bits, s) for s, X in enumerate(data)]),
        }
    return found


def heterogeneity(settings: Settings, say: Say = silent) -> list[dict[str, Any]]:
    """Spread of r over clients, all n directions, as their data grow apart: self-supervised (R bits) against supervised."""
    n, bits, rows = settings.clients, settings.middle_bits, []
    shares = [1 / n, *(1 / n + (1 - 1 / n) * x for x in (0.5, 0.8, 0.95)), 1.0]
    for own in shares:
        words = f"when clients own a share {own:.2f} of their data, {bits} bits x {settings.seeds} seeds"
        say(f"theorem 2: evenness {words}")
        found: dict[str, list[Tensor]] = {"self_supervised": [], "supervised": []}
        for seed in range(settings.seeds):
            data = [blended_data(settings.sources, k, own, generator(seed, "blend", own, k)) for k in range(n)]
            gens = [generator(seed, "blend training", own, k) for k in range(n)]
            w = [
                _train([c.covariance], settings.m, bits, settings.rounds, g, local=True)
                for c, g in zip(data, gens, strict=True)
            ]
            v = [supervised_features(c.x, c.labels, 2 * n, settings.m) for c in data]
            for name, models in zip(found, (w, v), strict=True):
                found[name].append(torch.stack([representability(each)[:n] for each in models]))
        spreads = {name: Estimate.of([spread(r) for r in each]).to_json() for name, each in found.items()}
        lowest = {f"{name}_r_min": min(float(r.min()) for r in each) for name, each in found.items()}
        rows.append({"own_share": own, **spreads, **lowest})
    return rows


def covariance_check(settings: Settings) -> dict[str, Any]:
    """E[X_k] of client 1 beside a large sample and the printed form: the n x n block and the largest deviations."""
    sources, n = settings.sources, settings.clients
    big = type(sources)(settings.dim, n, 20_000, 20_000 * sources.minority // sources.majority)
    sample = covariance(client_data(big, 0, generator(0, "large sample")).x)
    true, printed = expected_covariance(big, 0), printed_covariance(big, 0)
    forms = {"sample": sample, "expected": true, "printed": printed}
    return {
        **{name: X[:n, :n].tolist() for name, X in forms.items()},
        "samples": big.samples,
        "deviation_expected": float((sample - true).abs().max()),
        "deviation_printed": float((sample - printed).abs().max()),
    }


def small_rank_control(settings: Settings) -> dict[str, object]:
    """Rank m < n: the r of n directions sum to at most m, so the smallest is at most m/n and the check must fail."""
    m = max(1, settings.clients // 2)
    data = [[c.covariance for c in _draw(settings, seed)] for seed in range(2)]
    lowest = min(float(global_model(settings, X, settings.middle_bits, s, m).r.min()) for s, X in enumerate(data))
    return {"rank": m, "r_min": lowest, "m_over_n": m / settings.clients, "fails": not lowest > PRESENT}


def _claims(table: ByBits, rows: list[dict[str, Any]], cov: dict[str, Any]) -> dict[str, Claim]:
    cells = [(name, where, cell) for name, both in table.items() for where, cell in both.items()]
    gap = min(cell["bound_gap_min"] for _, _, cell in cells)
    found = {
        "bound": claim(
            "r_j >= ||w e_j||^2/||w^T w||_2 and r_j <= 1", f"smallest r - bound {gap:.3g}", gap >= -ROUNDING
        ),
        "covariance_printed": claim(
            "App. A.4: E[X_k] = diag(tau^2, ..., 1, ..., tau^2, 0, ...) + O(d^(-2/5))",
            f"off a sample of {cov['samples']} by {cov['deviation_printed']:.2f}; "
            f"the true one by {cov['deviation_expected']:.2f}",
            cov["deviation_printed"] <= 3 * cov["deviation_expected"],
        ),
    }
    for where in ("local", "global"):
        worst = min((cell for _, w, cell in cells if w == where), key=lambda cell: cell["printed_gap_min"])
        found[f"printed_{where}"] = claim(
            f"Theorem 2 as printed, O(.) terms left out, {where} models",
            f"smallest r - bound {worst['printed_gap_min']:.3g}",
            worst["printed_gap_min"] >= -ROUNDING,
        )
    loose = min(cell["printed_loose_gap_min"] for _, where, cell in cells if where == "local")
    found["printed_local_loose"] = claim(
        "Theorem 2 as printed, O(d^(-2/5)) taken as mu^2, local models",
        f"smallest r - bound {loose:.3g}",
        loose >= -ROUNDING,
    )
    for name, both in table.items():
        lowest = min(both["local"]["r_min"], both["global"]["r_min"])
        found[f"represented_{name.replace(' ', '_')}"] = claim(
            f"Theorem 2: entries of r do not vanish (all above {PRESENT}), {name}",
            f"smallest r {lowest:.3f}",
            lowest > PRESENT,
        )
    ours, theirs = rows[-1]["self_supervised"], rows[-1]["supervised"]
    found["evener_than_supervised"] = claim(
        "Sec. 4: clients' representability is similar; more so than with labels, at full heterogeneity",
        f"spread {ours['mean']:.3f} [{ours['low']:.3f}, {ours['high']:.3f}]"
        f" against {theirs['mean']:.3f} [{theirs['low']:.3f}, {theirs['high']:.3f}]",
        ours["high"] < theirs["low"],
    )
    return found


def theorem2(settings: Settings, say: Say = silent) -> dict[str, object]:
    """The ``theorem2`` part of ``theory.json``; ``r_min``, ``r_mean`` and ``bound_min`` are over all quantized models.

    ``spread`` is that over clients at full heterogeneity and the middle bitwidth.
    """
    n, m = settings.clients, settings.m
    warning = None
    if m < n:
        warning = f"m = {m} < n = {n}: n directions do not fit into m dimensions, so min r <= m/n = {m / n:.2f}"
        say(f"warning: {warning}")
    cov = covariance_check(settings)
    table = by_bits(settings, say)
    rows = heterogeneity(settings, say)
    say("theorem 2: control with m < n")
    control = small_rank_control(settings)
    claims = _claims(table, rows, cov)
    cells = [cell for name, both in table.items() if name != "full precision" for cell in both.values()]
    return {
        "r_min": min(cell["r_min"] for cell in cells),
        "r_mean": sum(cell["r_mean"] for cell in cells) / len(cells),
        "bound_min": min(cell["bound_min"] for cell in cells),
        "spread": rows[-1]["self_supervised"]["mean"],
        "holds": claims["bound"]["holds"],
        "holds_printed": bool(claims["printed_local"]["holds"]) and bool(claims["printed_global"]["holds"]),
        "control_fails": control["fails"],
        "warning": warning,
        "claims": claims,
        "control": control,
        "by_bits": table,
        "heterogeneity": rows,
        "covariance": cov,
    }
