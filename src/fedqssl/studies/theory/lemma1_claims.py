"""What Lemma 1, Corollary 1 and their proof claim, each compared with the measurements."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedqssl.evaluation.statistics import Estimate
from fedqssl.studies.theory.claims import Claim, claim

RATE = 0.1
STEP_RATE = 0.15
EXPONENT = 0.1
SAMPLING = 0.03
"""Relative allowance for sampling noise when two variances are compared."""


@dataclass
class Curves:
    """Mean variance per bitwidth (for figures) and the slopes with their intervals."""

    bits: tuple[int, ...]
    variance: dict[str, list[float]] = field(default_factory=dict)
    slopes: dict[str, Estimate] = field(default_factory=dict)


def _say(e: Estimate) -> str:
    return f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]"


def _rates(curves: Curves) -> dict[str, Claim]:
    s, found = curves.slopes, {}
    for name, words in (("uniform", "uniform"), ("tanh", "tanh-companded"), ("optimal", "optimally companded")):
        text = f"{words} quantization of off-grid weights has variance ~ 2^(-2R)"
        found[f"rate_{name}"] = claim(text, f"slope {_say(s[name])}", s[name].within(-2, RATE))
    for family in ("gauss", "laplace", "uniform"):
        e = s[f"gradient {family}"]
        text = f"Lemma 1: E||eps_g||^2 = O(G^2/2^(2R)), gradients {family}"
        found[f"gradient_rate_{family}"] = claim(text, f"slope {_say(e)}", e.mean <= -2 + RATE)
    return found


def _references(curves: Curves) -> dict[str, Claim]:
    """The proof's sandwich: optimal companding below, uniform quantization above."""
    v, slack, found = curves.variance, 1 + SAMPLING, {}
    inside = [o <= slack * t and t <= slack * u for o, t, u in zip(v["optimal"], v["tanh"], v["uniform"], strict=True)]
    worst = max(t / u for t, u in zip(v["tanh"], v["uniform"], strict=True))
    found["weights_between_references"] = claim(
        "proof of Lemma 1: the tanh quantizer's MSE lies between optimal companding and uniform quantization",
        f"at {sum(inside)} of {len(inside)} bitwidths; largest tanh/uniform {worst:.2f}",
        all(inside),
    )
    for family in ("gauss", "laplace"):
        ratios = [q / u for q, u in zip(v[f"gradient {family}"], v[f"uniform on {family}"], strict=True)]
        found[f"gradient_below_uniform_{family}"] = claim(
            f"proof of Lemma 1: uniform quantization bounds the quantile quantizer's MSE, gradients {family}",
            f"quantile/uniform {ratios[0]:.1f} at {curves.bits[0]} bits, {ratios[-1]:.1f} at {curves.bits[-1]}",
            max(ratios) <= slack,
        )
    return found


def _weights(curves: Curves, x: dict[str, Estimate]) -> dict[str, Claim]:
    found = {}
    for regime, expected, tolerance in (("small", (-1, 1, 1), STEP_RATE), ("large", (-2, 0, 0), STEP_RATE)):
        r, a, g = (curves.slopes[f"weight, {regime} step"], x[f"weight alpha {regime}"], x[f"weight G {regime}"])
        words = f"steps much {'smaller' if regime == 'small' else 'larger'} than a cell"
        measured = f"slopes R {_say(r)}, alpha {_say(a)}, G {_say(g)}"
        found[f"weight_{regime}_step_printed"] = claim(
            f"Lemma 1: E||eps_w||^2 = O(alpha G^2/2^(2R)), {words}",
            measured,
            r.mean <= -2 + RATE and a.mean >= 1 - EXPONENT and g.mean >= 2 - EXPONENT,
        )
        law = "alpha G 2^(-R)" if regime == "small" else "2^(-2R), without alpha and G"
        found[f"weight_{regime}_step"] = claim(
            f"our reading: E||eps_w||^2 ~ {law}; {words}",
            measured,
            r.within(expected[0], tolerance) and a.within(expected[1], EXPONENT) and g.within(expected[2], EXPONENT),
        )
    return found


def _corollary(curves: Curves, x: dict[str, Estimate]) -> dict[str, Claim]:
    w, r = curves.slopes["weight, small step"], curves.slopes["server, small step"]
    a, b = x["weight alpha small"], x["server alpha small"]
    slopes = f"slopes of E||eps||^2/alpha in R: eps_w {_say(w)}, eps_r {_say(r)}"
    steepest = max(w.mean, r.mean)
    return {
        "corollary1_finite": claim(
            "Corollary 1: E||eps_w||^2, E||eps_r||^2 <= alpha G_q^2 with one G_q for all small alpha",
            f"exponents of alpha: eps_w {_say(a)}, eps_r {_say(b)}",
            min(a.mean, b.mean) >= 1 - EXPONENT,
        ),
        "corollary1_printed": claim(
            "Corollary 1: G_q = O(G^2/2^(2R))", slopes + "; needed -4", steepest <= -4 + STEP_RATE
        ),
        "corollary1_squared": claim(
            "Corollary 1 read as G_q^2 = O(G^2/2^(2R))", slopes + "; needed -2", steepest <= -2 + STEP_RATE
        ),
    }


def judge(curves: Curves, exponents: dict[str, Estimate], unbiased: bool) -> dict[str, Claim]:
    """All claims, by name."""
    return {
        **_rates(curves),
        **_references(curves),
        **_weights(curves, exponents),
        **_corollary(curves, exponents),
        "unbiased": claim("Assumption 1: all quantization errors have zero mean", "z of nine errors", unbiased),
    }
