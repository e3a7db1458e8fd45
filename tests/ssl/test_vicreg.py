"""VICReg's three terms, recomputed with loops and doubles."""

import math
import statistics

import pytest
import torch

from fedqssl.ssl.vicreg import expander, vicreg


def by_hand(z: torch.Tensor) -> float:
    """Bardes et al., Eq. 1 to 6 with weights 25, 25 and 1, all divided by 25 (the variance term is a mean of both views)."""
    a, b = (part.tolist() for part in z.double().chunk(2))
    n, d = len(a), len(a[0])
    loss = sum((p - q) ** 2 for x, y in zip(a, b, strict=True) for p, q in zip(x, y, strict=True)) / (n * d)
    for rows in (a, b):
        columns = list(zip(*rows, strict=True))
        loss += sum(max(0.0, 1 - math.sqrt(statistics.variance(c) + 1e-4)) for c in columns) / (2 * d)
        for j in range(d):
            for k in range(d):
                if j != k:
                    loss += statistics.covariance(columns[j], columns[k]) ** 2 / (25 * d)
    return loss


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("dim", [1, 3, 8])
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
def test_loss_is_the_formula(n, dim, size):
    z = size * torch.randn(2 * n, dim, generator=torch.Generator().manual_seed(10 * n + dim))
    assert vicreg(z).item() == pytest.approx(by_hand(z), rel=1e-4)


def test_each_term_alone():
    spread = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])  # variance 8/3, uncorrelated
    assert vicreg(spread.repeat(2, 1)).item() == 0.0
    moved = vicreg(torch.cat([spread, spread + 0.5])).item()
    assert moved == pytest.approx(0.25)  # invariance alone
    tied = torch.tensor([[2.0, 2.0], [-2.0, -2.0]]).repeat(2, 1)  # covariance 8 twice, both views
    assert vicreg(tied).item() == pytest.approx(2 * 2 * 64 / 25 / 2)


def test_collapse_is_the_worst_of_the_variance_term():
    assert vicreg(torch.full((8, 3), 0.7)).item() == pytest.approx(1 - math.sqrt(1e-4))


def test_gradient_agrees_with_finite_differences():
    z = 0.3 * torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(vicreg, (z.requires_grad_(),))


def test_swapping_the_views_changes_nothing():
    z = torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(vicreg(z), vicreg(z.roll(5, 0)))


def test_expander_shapes():
    assert expander(16, 8)(torch.rand(3, 16)).shape == (3, 8)


@pytest.mark.parametrize("shape", [(3, 4), (2, 4), (0, 4), (4,), (2, 2, 2)])
def test_wrong_shapes_say_so(shape):
    with pytest.raises(ValueError, match="2N, d"):
        vicreg(torch.zeros(shape))
