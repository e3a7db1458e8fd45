"""The decoupled contrastive loss, recomputed with loops and doubles."""

import math

import pytest
import torch

from fedqssl.ssl import nt_xent
from fedqssl.ssl.dcl import dcl


def by_hand(z: torch.Tensor, temperature: float) -> float:
    """Yeh et al., Eq. 6, summed over both views."""
    rows = z.double().tolist()
    n = len(rows) // 2

    def similarity(a: list[float], b: list[float]) -> float:
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / (math.hypot(*a) * math.hypot(*b)) / temperature

    loss = 0.0
    for i in range(2 * n):
        other = (i + n) % (2 * n)
        negatives = [math.exp(similarity(rows[i], rows[j])) for j in range(2 * n) if j not in (i, other)]
        loss += math.log(sum(negatives)) - similarity(rows[i], rows[other])
    return loss / (2 * n)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("dim", [1, 2, 17])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_loss_is_the_formula(n, dim, temperature):
    z = torch.randn(2 * n, dim, generator=torch.Generator().manual_seed(10 * n + dim))
    assert dcl(z, temperature).item() == pytest.approx(by_hand(z, temperature), rel=1e-4, abs=1e-5)


def test_known_values():
    assert dcl(torch.eye(2).repeat(2, 1), 1.0).item() == pytest.approx(math.log(2) - 1, abs=1e-6)
    assert dcl(torch.ones(16, 4)).item() == pytest.approx(math.log(14), abs=1e-5)  # 2N - 2 negatives, all equal


def test_without_the_positive_it_lies_below_info_nce():
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    assert dcl(z) < nt_xent(z)


def test_gradient_agrees_with_finite_differences():
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(dcl, (z,))


def test_solved_positives_still_push_negatives_apart():
    """Views that agree exactly stop InfoNCE's gradient at a low temperature, not this one's."""
    z = (torch.eye(4) + 0.1).repeat(2, 1).requires_grad_()
    sizes = [torch.autograd.grad(loss(z, 0.05), z)[0].norm() for loss in (nt_xent, dcl)]
    assert sizes[1] > 1e3 * sizes[0]


@pytest.mark.parametrize("shape", [(3, 4), (2, 4), (0, 4), (4,), (2, 2, 2)])
def test_wrong_shapes_say_so(shape):
    with pytest.raises(ValueError, match="2N, d"):
        dcl(torch.zeros(shape))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature"):
        dcl(torch.ones(4, 2), temperature)
