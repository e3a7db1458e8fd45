"""Lemma 1 and Corollary 1: the slopes that must hold, and claims that may fail."""

import pytest

from fedqssl.evaluation.statistics import Estimate
from fedqssl.studies.theory import Settings
from fedqssl.studies.theory.lemma1 import lemma1, measure_rates
from fedqssl.studies.theory.lemma1_claims import Curves, judge


@pytest.fixture(scope="module")
def part() -> dict:
    return lemma1(Settings(bits=tuple(range(4, 11)), seeds=3))


@pytest.mark.parametrize("name", ["uniform", "tanh", "optimal", "gradient uniform"])
def test_off_grid_slopes_are_minus_two(part: dict, name: str) -> None:
    assert part["slopes"][name]["mean"] == pytest.approx(-2, abs=0.1)


def test_weight_error_of_small_steps(part: dict) -> None:
    assert part["slope_weight_small_step"] == pytest.approx(-1, abs=0.15)
    assert part["exponents"]["weight alpha small"]["mean"] == pytest.approx(1, abs=0.1)
    assert part["exponents"]["weight G small"]["mean"] == pytest.approx(1, abs=0.1)


def test_weight_error_of_large_steps(part: dict) -> None:
    assert part["slope_weight_large_step"] == pytest.approx(-2, abs=0.3)  # -2.13 with these few samples
    assert part["exponents"]["weight alpha large"]["mean"] == pytest.approx(0, abs=0.1)


def test_heavy_tails_break_the_printed_gradient_rate(part: dict) -> None:
    slopes = part["slope_gradient"]
    assert -1.6 < slopes["gauss"] < -1.2 and -1.5 < slopes["laplace"] < -1
    claims = part["claims"]
    assert not claims["gradient_rate_gauss"]["holds"] and not claims["gradient_rate_laplace"]["holds"]
    assert claims["gradient_rate_uniform"]["holds"]


def test_every_error_has_zero_mean_and_floor_rounding_does_not(part: dict) -> None:
    assert part["bias_z"] < part["bias_threshold"]  # 27 tests, wrongly rejected with probability 1e-3 in all
    assert part["control_fails"] and part["control_floor_z"] > 100


def test_contract(part: dict) -> None:
    assert {"slope_companded", "slope_weight_small_step", "slope_weight_large_step", "slope_gradient", "bias_z"} <= set(
        part
    )
    assert set(part["slope_gradient"]) == {"gauss", "laplace", "uniform"}
    assert all(isinstance(claim["holds"], bool) for claim in part["claims"].values())


def _measured(rate: float, alpha: float, g: float) -> dict:
    names = ("uniform", "tanh", "optimal", "gradient gauss", "gradient laplace", "gradient uniform")
    names += ("weight, small step", "weight, large step", "server, small step")
    e = {n: Estimate(rate, rate, rate) for n in names}
    variance = {n: [1.0] for n in (*names, "uniform on gauss", "uniform on laplace")}
    x = {f"weight alpha {r}": Estimate(alpha, alpha, alpha) for r in ("small", "large")}
    x |= {f"weight G {r}": Estimate(g, g, g) for r in ("small", "large")}
    x |= {"server alpha small": Estimate(alpha, alpha, alpha)}
    return judge(Curves((4,), variance, e), x, True)


def test_claims_follow_the_measurements_both_ways() -> None:
    printed = _measured(-2, 1, 2)
    assert printed["weight_small_step_printed"]["holds"] and not printed["weight_small_step"]["holds"]
    assert printed["corollary1_squared"]["holds"] and not printed["corollary1_printed"]["holds"]
    other = _measured(-1, 1, 1)
    assert not other["weight_small_step_printed"]["holds"] and other["weight_small_step"]["holds"]
    assert not other["rate_tanh"]["holds"] and not other["corollary1_squared"]["holds"]
    assert _measured(-4, 1, 2)["corollary1_printed"]["holds"]


def test_one_bitwidth_has_no_slope() -> None:
    with pytest.raises(ValueError, match="at least two bitwidths"):
        measure_rates(Settings(bits=(4,)))
