import math

import pytest
import torch

from fedqssl.ssl import nt_xent


def by_hand(z: torch.Tensor, temperature: float) -> float:
    """Paper, Sec. 2, with loops and doubles."""
    rows = z.double().tolist()
    n = len(rows) // 2

    def term(a: list[float], b: list[float]) -> float:
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return math.exp(dot / (math.hypot(*a) * math.hypot(*b)) / temperature)

    loss = 0.0
    for i in range(2 * n):
        positive = term(rows[i], rows[(i + n) % (2 * n)])
        others = sum(term(rows[i], rows[j]) for j in range(2 * n) if j != i)
        loss -= math.log(positive / others)
    return loss / (2 * n)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("dim", [1, 2, 17])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_loss_is_the_paper_formula(n, dim, temperature):
    z = torch.randn(2 * n, dim, generator=torch.Generator().manual_seed(10 * n + dim))
    assert nt_xent(z, temperature).item() == pytest.approx(by_hand(z, temperature), rel=1e-4, abs=1e-5)


def test_known_values():
    z = torch.eye(2).repeat(2, 1)
    assert nt_xent(z, 1.0).item() == pytest.approx(math.log(1 + 2 / math.e), abs=1e-6)
    collapsed = torch.ones(16, 4)  # all similarities equal: a guess among 2N - 1
    assert nt_xent(collapsed).item() == pytest.approx(math.log(15), abs=1e-5)


def test_one_image_has_zero_loss_and_gradient():
    z = torch.randn(2, 5, requires_grad=True)
    loss = nt_xent(z)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_gradient_agrees_with_finite_differences():
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(nt_xent, (z,))


def test_invariant_to_length_and_to_swapping_the_views():
    z = torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    scaled = z * torch.linspace(0.5, 5, 10)[:, None]
    assert torch.allclose(nt_xent(z), nt_xent(scaled))
    assert torch.allclose(nt_xent(z), nt_xent(z.roll(5, 0)))


def test_cold_temperature_stays_finite():
    z = torch.randn(64, 8, generator=torch.Generator().manual_seed(2), requires_grad=True)
    loss = nt_xent(z, 1e-3)
    loss.backward()
    assert loss.isfinite() and z.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (4,), (2, 2, 2)])
def test_wrong_shapes_say_so(shape):
    with pytest.raises(ValueError, match="2N, d"):
        nt_xent(torch.zeros(shape))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature"):
        nt_xent(torch.ones(2, 2), temperature)
