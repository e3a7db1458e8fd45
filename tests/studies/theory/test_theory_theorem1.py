"""Theorem 1: proximal map, envelope, quantized FedAvg, the bound and its control."""

import math

import pytest
import torch
from torch import Tensor

from fedqssl.studies.theory import Settings
from fedqssl.studies.theory.fedavg import Steps, TheoryPrecision, initial_weights, run_fedavg
from fedqssl.studies.theory.model import covariance, gradient, minimum, objective, weak_convexity
from fedqssl.studies.theory.moreau import check_smoothness, moreau
from fedqssl.studies.theory.randomness import generator
from fedqssl.studies.theory.theorem1 import Case, Sides, _limit, cases, compare, make_problem, run_case

SMALL = Settings(dim=12, clients=3, bits=(3, 8), rounds=30, seeds=3)


def _X(seed: int = 0, d: int = 8) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return covariance(torch.randn(3 * d, d, dtype=torch.float64, generator=gen))


def _points(count: int, m: int = 3, d: int = 8) -> Tensor:
    return torch.randn(count, m, d, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("ratio", [1.1, 2.0, 10.0])
def test_prox_satisfies_its_optimality_condition(ratio: float) -> None:
    X, x = _X(), _points(20)
    rho_bar = ratio * weak_convexity(X)
    found = moreau(x, X, rho_bar)
    residual = (gradient(found.prox, X) + rho_bar * (found.prox - x)).flatten(1).norm(dim=1)
    assert float(residual.max()) <= 1e-9 * (rho_bar - weak_convexity(X)) * 1.001 and found.error <= 1e-9


def test_prox_beats_other_points() -> None:
    X, x = _X(), _points(5)
    rho_bar = 2 * weak_convexity(X)
    found = moreau(x, X, rho_bar)
    for scale in (1e-4, 1e-2, 1.0):
        y = found.prox + scale * _points(5).flip(0)
        assert bool((objective(y, X) + rho_bar / 2 * (y - x).square().sum((-2, -1)) >= found.value).all())


def test_envelope_gradient_is_the_step_to_the_prox_over_lambda() -> None:
    X, x = _X(), _points(1)[0]
    rho_bar, h = 2 * weak_convexity(X), 1e-5
    found = moreau(x, X, rho_bar, 1e-12)
    assert torch.allclose(found.gradient, rho_bar * (x - found.prox))
    for i, j in ((0, 0), (1, 4), (2, 7)):
        e = torch.zeros_like(x)
        e[i, j] = h
        high, low = (moreau(x + s * e, X, rho_bar, 1e-12).value for s in (1, -1))
        assert float((high - low) / (2 * h)) == pytest.approx(float(found.gradient[i, j]), rel=1e-4, abs=1e-4)


def test_rho_bar_must_exceed_rho() -> None:
    X = _X()
    with pytest.raises(ValueError, match="rho-bar must exceed rho"):
        moreau(_points(1), X, weak_convexity(X))


def test_smoothness_region() -> None:
    X = _X()
    top = weak_convexity(X) / 4
    found = check_smoothness(X, 3, 2 * top, generator(0, "smooth"))
    assert found.holds and 8 * 2 * top < found.largest <= 16 * 2 * top
    with pytest.raises(ValueError, match="Gamma must be at least"):
        check_smoothness(X, 3, 0.5 * top, generator(0, "smooth"))


def test_full_precision_fedavg_is_gradient_descent() -> None:
    X = [_X(0), _X(1)]
    w0, p = initial_weights(2, 8, generator(0, "w")), torch.tensor([3.0, 1.0])
    trace = run_fedavg(w0, X, Steps(0.01), 5, TheoryPrecision(32), generator(0, "r"), p)
    w = w0
    for _ in range(5):
        w = w - 0.01 * gradient(w, 0.75 * X[0] + 0.25 * X[1])
    assert torch.allclose(trace.final, w) and trace.Gq2 == 0


def test_steps_shrink_with_the_root_of_t() -> None:
    assert [Steps(0.3, "sqrt").alpha(t) for t in (0, 3)] == pytest.approx([0.3, 0.15])
    with pytest.raises(ValueError, match="must be positive"):
        Steps(0.0)


def test_quantized_fedavg_stays_on_r_bit_grids_and_approaches_float() -> None:
    X, w0 = [_X(0), _X(1)], initial_weights(2, 8, generator(0, "w"))
    coarse = run_fedavg(w0, X, Steps(0.01), 20, TheoryPrecision(2), generator(0, "r"))
    assert all(len(w.unique()) <= 4 for w in coarse.iterates)
    full = run_fedavg(w0, X, Steps(0.01), 20, TheoryPrecision(32), generator(0, "r")).final
    gaps = [
        float((run_fedavg(w0, X, Steps(0.01), 20, TheoryPrecision(b), generator(0, "r")).final - full).norm())
        for b in (4, 8, 14)
    ]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.01


def test_mixed_bitwidths_average_what_clients_hold() -> None:
    X, w0 = [_X(0), _X(1)], initial_weights(2, 8, generator(0, "w"))
    trace = run_fedavg(w0, X, Steps(0.01), 3, TheoryPrecision((2, 12)), generator(0, "r"))
    assert all(len(w.unique()) > 4 for w in trace.iterates)
    with pytest.raises(ValueError, match="3 bitwidths for 2 clients"):
        run_fedavg(w0, X, Steps(0.01), 3, TheoryPrecision((2, 12, 4)), generator(0, "r"))
    with pytest.raises(ValueError, match="from 1 to 16"):
        run_fedavg(w0, X, Steps(0.01), 3, TheoryPrecision(0), generator(0, "r"))


def test_divergence_is_named() -> None:
    X, w0 = [_X(0)], initial_weights(2, 8, generator(0, "w"), 1.0)
    with pytest.raises(ValueError, match="diverged in round"):
        run_fedavg(w0, X, Steps(5.0), 50, TheoryPrecision(32), generator(0, "r"))


def test_same_generator_same_run() -> None:
    X, w0 = [_X(0), _X(1)], initial_weights(2, 8, generator(0, "w"))
    a, b = (run_fedavg(w0, X, Steps(0.01), 5, TheoryPrecision(4), generator(7, "r")).final for _ in range(2))
    assert torch.equal(a, b)


def test_both_sides_by_hand() -> None:
    problem = make_problem(SMALL)
    w0 = initial_weights(3, 12, generator(0, "w"))
    traces = [
        run_fedavg(w0, problem.X, Steps(0.02, "sqrt"), 4, TheoryPrecision(6), generator(s, "r")) for s in range(2)
    ]
    sides = compare(traces, problem)
    alphas, rho, bar = [0.02 / math.sqrt(t + 1) for t in range(4)], problem.rho, problem.rho_bar
    left = [
        sum(
            a * float(moreau(w, problem.X_bar, bar).gradient.square().sum())
            for a, w in zip(alphas, trace.iterates, strict=False)
        )
        for trace in traces
    ]
    assert float(sides.lhs[-1]) == pytest.approx(sum(left) / 2 / sum(alphas))
    start = sum(float(moreau(t.iterates[0], problem.X_bar, bar).value) for t in traces) / 2
    G2, Gq2 = max(t.G for t in traces) ** 2, max(t.Gq2 for t in traces)
    top = start - minimum(problem.X_bar, 3) + bar * (G2 * sum(a * a for a in alphas) + 3 * Gq2 * sum(alphas))
    assert float(sides.rhs[-1]) == pytest.approx(bar / (bar - rho) * top / sum(alphas))
    assert float(sides.rhs_printed[-1]) == pytest.approx(float(sides.rhs[-1]) / bar)
    assert sides.floor == pytest.approx(bar / (bar - rho) * bar * 3 * Gq2)


def _bounded(*last: float) -> dict[str, Sides]:
    """Made-up results whose bounds end at these values: 5 bits, 12 bits, full precision."""
    names = ("5 bits, constant", "12 bits, constant", "full precision, constant")
    ones = torch.ones(2)
    return {n: Sides(ones, ones, ones * value, ones, 1, 1, 0, 0, 0) for n, value in zip(names, last, strict=True)}


def test_the_bound_need_not_tend_to_that_of_plain_sgd() -> None:
    """The claim is about the most bits, and fails if their bound stays away from that of full precision."""
    assert _limit(_bounded(50.0, 10.2, 10.0))["holds"]
    assert not _limit(_bounded(10.0, 11.0, 10.0))["holds"]
    assert "1.100 (12 bits, constant)" in str(_limit(_bounded(10.0, 11.0, 10.0))["measured"])


def test_cases_cover_both_steps_full_precision_local_steps_and_mixed_bits() -> None:
    found = cases(SMALL)
    assert {c.kind for c in found if c.proven} == {"constant", "sqrt"}
    assert any(c.bits == 32 for c in found)
    assert [c.local_steps for c in found if not c.proven] == [4, 1]


@pytest.mark.parametrize("bits", [3, 8, 32])
@pytest.mark.parametrize("kind", ["constant", "sqrt"])
def test_the_proof_form_holds_with_one_local_step(bits: int, kind: str) -> None:
    problem = make_problem(SMALL)
    sides, norm2 = run_case(Case("test", bits, kind), problem, SMALL)  # type: ignore[arg-type]
    assert sides.holds and norm2 <= problem.gamma
    assert (sides.floor == 0) == (bits == 32)
