"""Lemma 1 and Corollary 1 as experiments: how error variances scale with R, alpha and G, and whether errors have zero mean.

As printed: ``E||eps_g||^2 = O(G^2 / 2^(2R))``, ``E||eps_w||^2 = O(alpha G^2 / 2^(2R))`` (Lemma 1), and ``G_q = O(G^2 / 2^(2R))``
with ``E||eps_w||^2, E||eps_r||^2 <= alpha G_q^2`` (Corollary 1). A power law is measured as the slope of log2(variance); an O(.)
bound is read as "decays at least this fast". Every slope is fitted per seed and given with a 95% interval over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedqssl.evaluation.statistics import FAMILY_ERROR, Estimate, log_slope, z_threshold, zero_mean_z
from fedqssl.studies.theory import errors
from fedqssl.studies.theory.errors import FAMILIES, Layer, mean_square, small_step
from fedqssl.studies.theory.lemma1_claims import Curves, judge
from fedqssl.studies.theory.quantizers import Rounded, bias_directions, floor_control
from fedqssl.studies.theory.settings import Say, Settings, silent

MULTIPLES = (1.0, 2.0, 4.0, 8.0)
GRADIENT_ENTRIES = 1 << 16
LARGE_BITS = 10
"""Bits at which steps of 0.02 to 0.16 of the largest weight are 10 to 80 cells, and the range still hardly moves."""

Measure = Callable[[int, Layer], list[Rounded]]


def _variances(measure: Measure, points: Sequence[int], seeds: int, entries: int) -> Tensor:
    """(S, points) mean squared errors."""
    rows = []
    for seed in range(seeds):
        layer = Layer(seed, entries, draws=2 if entries > errors.ENTRIES else errors.DRAWS)
        made = [measure(point, layer) for point in points]
        rows.append([sum(map(mean_square, m)) / len(m) for m in made])
    return torch.tensor(rows, dtype=torch.float64)


def _rate_measures(step: float) -> dict[str, tuple[Measure, int]]:
    """Name -> (measure at R bits, entries of the layer), for slopes against R."""
    n, many = errors.ENTRIES, GRADIENT_ENTRIES
    return {
        **{kind: (partial(errors.companded, kind), n) for kind in errors.COMPANDERS},
        **{f"gradient {family}": (partial(errors.gradients, family), many) for family in FAMILIES},
        **{f"uniform on {family}": (partial(errors.uniform_on, family), many) for family in FAMILIES[:2]},
        "weight, small step": (lambda r, layer: errors.weight_step(r, step, 1.0, layer), n),
        "weight, large step": (lambda r, layer: errors.weight_step(r, errors.LARGE_SHARE, 1.0, layer), n),
        "server, small step": (lambda r, layer: errors.server_step(r, step, 1.0, layer), n),
    }


def measure_rates(settings: Settings, say: Say = silent) -> Curves:
    """Variances over all bitwidths and slopes over ``settings.slope_bits``."""
    fit = settings.slope_bits
    if len(fit) < 2:
        raise ValueError("a slope against R needs at least two bitwidths; give --bits a range like 2..12")
    curves = Curves(settings.bits)
    inside = [settings.bits.index(r) for r in fit]
    for name, (measure, entries) in _rate_measures(small_step(max(fit))).items():
        say(f"lemma 1: {name}, {len(settings.bits)} bitwidths x {settings.seeds} seeds")
        v = _variances(measure, settings.bits, settings.seeds, entries)
        curves.variance[name] = v.mean(0).tolist()
        curves.slopes[name] = log_slope(fit, v[:, inside])
    return curves


def measure_exponents(settings: Settings, say: Say = silent) -> dict[str, Estimate]:
    """Exponents of alpha and of G, in both regimes, over a factor of 8.

    Not of G for gradients: the quantile quantizer of a multiple is the multiple of the quantizer, so it is 2 whatever is true.
    """
    say("lemma 1: exponents of alpha and G, small and large steps")
    low = settings.middle_bits
    bases = {"small": (low, small_step(low + 2) / 2), "large": (max(LARGE_BITS, low), 0.02)}
    found = {}

    def add(name: str, measure: Callable[[float, Layer], list[Rounded]]) -> None:
        at: Measure = lambda i, layer: measure(MULTIPLES[i], layer)  # noqa: E731
        v = _variances(at, range(len(MULTIPLES)), settings.seeds, errors.ENTRIES)
        found[name] = log_slope([torch.tensor(a).log2().item() for a in MULTIPLES], v)

    for regime, (r, base) in bases.items():
        add(f"weight alpha {regime}", lambda a, layer, r=r, base=base: errors.weight_step(r, a * base, 1.0, layer))  # type: ignore[misc]
        add(f"weight G {regime}", lambda a, layer, r=r, base=base: errors.weight_step(r, base, a, layer))  # type: ignore[misc]
    r, base = bases["small"]
    add("server alpha small", lambda a, layer: errors.server_step(r, a * base, 1.0, layer))
    return found


def _joined(parts: Sequence[Rounded]) -> dict[str, float]:
    """Zero-mean test over several independent draws: directions, errors and variances side by side."""
    u = [bias_directions(p) for p in parts]
    directions = {name: torch.cat([each[name].flatten() for each in u]) for name in u[0]}
    error = torch.cat([p.error.flatten() for p in parts])
    return zero_mean_z(error, torch.cat([p.variance.flatten() for p in parts]), directions)


def measure_bias(settings: Settings, say: Say = silent) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Zero-mean tests of every error in three directions at the middle bitwidth, and of the floor control."""
    say("lemma 1: zero-mean tests")
    r, layers = settings.middle_bits, [Layer(1000 + s) for s in range(settings.seeds)]
    measures = {name: measure for name, (measure, _) in _rate_measures(small_step(r + 2)).items()}
    z = {
        name: _joined([q for layer in layers for q in measure(r, layer)])
        for name, measure in measures.items()
        if not name.startswith("uniform on")  # the proof's reference, not an error of training
    }
    control = _joined([floor_control(q) for layer in layers for q in errors.companded("tanh", r, layer)])
    return z, control


def lemma1(settings: Settings, say: Say = silent) -> dict[str, object]:
    """The ``lemma1`` part of ``theory.json``."""
    curves = measure_rates(settings, say)
    exponents = measure_exponents(settings, say)
    z, control = measure_bias(settings, say)
    largest = max(abs(v) for each in z.values() for v in each.values())
    limit = z_threshold(sum(len(each) for each in z.values()))
    control_z = max(abs(v) for v in control.values())
    s = curves.slopes
    return {
        "slope_companded": s["tanh"].mean,
        "slope_weight_small_step": s["weight, small step"].mean,
        "slope_weight_large_step": s["weight, large step"].mean,
        "slope_gradient": {f: s[f"gradient {f}"].mean for f in FAMILIES},
        "bias_z": largest,
        "bias_threshold": limit,
        "bias_error_rate": FAMILY_ERROR,
        "bias_z_each": z,
        "control_floor_z": control_z,
        "control_fails": control_z > limit,
        "claims": judge(curves, exponents, largest <= limit),
        "slopes": {name: e.to_json() for name, e in s.items()},
        "exponents": {name: e.to_json() for name, e in exponents.items()},
        "slope_bits": list(settings.slope_bits),
        "curves": {"bits": list(curves.bits), "variance": curves.variance},
    }
