"""The linear model of Sec. 4: objectives, gradients, optimum, weak convexity; data of App. A.4."""

import pytest
import torch
from torch import Tensor

from fedqssl.studies.theory.data import Sources, blended_data, client_data, expected_covariance, printed_covariance
from fedqssl.studies.theory.model import (
    align,
    covariance,
    global_covariance,
    gradient,
    hessian_product,
    minimum,
    objective,
    optimum,
    ssl_objective,
    ssl_objective_sampled,
    weak_convexity,
)
from fedqssl.studies.theory.randomness import generator

D, M = 9, 3


def _problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(seed)
    a = torch.randn(2 * D, D, dtype=torch.float64, generator=gen)
    return covariance(a), torch.randn(M, D, dtype=torch.float64, generator=gen)


def test_objective_is_twice_the_ssl_objective_up_to_a_constant() -> None:
    X, w = _problem()
    assert objective(w, X) == pytest.approx(float(2 * ssl_objective(w, X) + X.square().sum()))


def test_sampled_ssl_objective_has_the_closed_form_as_its_mean() -> None:
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(500, D, dtype=torch.float64, generator=gen)
    w = torch.randn(M, D, dtype=torch.float64, generator=gen) / 3
    xi = 0.3 * torch.randn(2, 4000, 500, M, dtype=torch.float64, generator=gen)
    draws = torch.stack([ssl_objective_sampled(w, x, a, b) for a, b in zip(*xi, strict=True)])
    standard_error = float(draws.std()) / len(draws) ** 0.5
    assert abs(float(draws.mean() - ssl_objective(w, covariance(x)))) < 4 * standard_error  # fails by chance: 6e-5


def test_gradient_and_hessian_agree_with_autograd() -> None:
    X, w = _problem()
    v = torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    free = w.clone().requires_grad_()
    (g,) = torch.autograd.grad(objective(free, X), free, create_graph=True)
    (h,) = torch.autograd.grad((g * v).sum(), free)
    assert torch.allclose(g, gradient(w, X)) and torch.allclose(h, hessian_product(w, X, v))


def test_global_gradient_is_the_mean_of_local_ones() -> None:
    Xs, p = [_problem(s)[0] for s in range(3)], torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    w = _problem()[1]
    mean = sum(pk * gradient(w, X) for pk, X in zip(p, Xs, strict=True))
    assert torch.allclose(gradient(w, global_covariance(Xs, p)), torch.as_tensor(mean))


@pytest.mark.parametrize("m", [1, 3, 9])
def test_closed_form_optimum_is_stationary_and_beats_random_starts(m: int) -> None:
    X, _ = _problem()
    best = optimum(X, m)
    assert float(gradient(best, X).norm()) < 1e-10
    values = torch.linalg.eigvalsh(X).flip(0)
    assert minimum(X, m) == pytest.approx(float(values[m:].square().sum()), abs=1e-12)
    gen = torch.Generator().manual_seed(3)
    starts = torch.randn(20, m, D, dtype=torch.float64, generator=gen)
    for _ in range(500):
        starts = starts - 0.01 * gradient(starts, X)
    assert bool((objective(starts, X) >= minimum(X, m) - 1e-9).all())


def test_rotated_optimum_is_as_good_and_is_aligned_back() -> None:
    X, w = _problem()
    turn = torch.linalg.qr(w[:, :M]).Q
    best = optimum(X, M)
    assert float(objective(turn @ best, X)) == pytest.approx(minimum(X, M))
    assert torch.allclose(align(turn @ best, best), best)


def test_weak_convexity_constant_is_attained_at_zero_and_nowhere_exceeded() -> None:
    X, _ = _problem()
    rho = weak_convexity(X)
    assert rho == pytest.approx(4 * float(torch.linalg.eigvalsh(X)[-1]))
    zero, v = torch.zeros(M, D, dtype=torch.float64), torch.zeros(M, D, dtype=torch.float64)
    v[0] = torch.linalg.eigh(X).eigenvectors[:, -1]
    assert float((v * hessian_product(zero, X, v)).sum()) == pytest.approx(-rho)
    gen = torch.Generator().manual_seed(4)
    w, u = torch.randn(2, 500, M, D, dtype=torch.float64, generator=gen)
    curvature = (u * hessian_product(w, X, u)).sum((-2, -1)) / u.square().sum((-2, -1))
    assert bool((curvature >= -rho).all())


@pytest.mark.parametrize("m", [0, D + 1])
def test_rank_out_of_range_is_an_error(m: int) -> None:
    with pytest.raises(ValueError, match=r"rank m must lie in 1\.\.9"):
        optimum(_problem()[0], m)


@pytest.mark.parametrize("k", [0, 2])
def test_expected_covariance_matches_samples_and_the_printed_one_does_not(k: int) -> None:
    sources = Sources(16, 3, majority=20_000, minority=4000)
    x = client_data(sources, k, generator(0, "test", k)).x
    outer = x[:, :, None] * x[:, None, :]
    # classes are drawn in fixed numbers, so the pooled deviation overestimates the standard error: the test is conservative
    error = outer.std(0) / len(x) ** 0.5
    z = (outer.mean(0) - expected_covariance(sources, k)).abs() / error
    assert float(z.max()) < 4.9  # 136 distinct entries: fails by chance with probability below 2e-4
    assert float(((outer.mean(0) - printed_covariance(sources, k)).abs() / error).max()) > 50


def test_data_have_the_classes_of_the_construction() -> None:
    sources = Sources(16, 4, majority=10, minority=2)
    data = client_data(sources, 1, generator(0, "classes"))
    assert torch.bincount(data.labels, minlength=8).tolist() == [2, 0, 10, 10, 2, 0, 2, 0]
    assert data.x.shape == (sources.samples, 16)


def test_blended_data_range_from_equal_to_own_only() -> None:
    sources = Sources(16, 4, majority=100)
    even = blended_data(sources, 2, 0.25, generator(0, "blend"))
    assert torch.bincount(even.labels).tolist() == [25] * 8
    own, same = blended_data(sources, 2, 1.0, generator(1, "own")), client_data(sources, 2, generator(1, "own"))
    assert torch.equal(own.x, same.x)
    with pytest.raises(ValueError, match="own is a share"):
        blended_data(sources, 2, 1.5, generator(0, "blend"))


def test_more_clients_than_dimensions_is_an_error() -> None:
    with pytest.raises(ValueError, match="must not exceed the dimension"):
        Sources(4, 5)
