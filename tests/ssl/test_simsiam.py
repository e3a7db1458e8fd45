"""SimSiam's loss by hand, and where its gradient goes."""

import pytest
import torch

from fedqssl.ssl.simsiam import SimSiamHeads, simsiam_loss


@pytest.mark.parametrize("n", [1, 2, 5])
def test_loss_by_hand(n):
    g = torch.Generator().manual_seed(n)
    p, z = torch.randn(2 * n, 3, generator=g), torch.randn(2 * n, 3, generator=g)
    total = 0.0
    for i in range(n):
        for a, b in ((i, i + n), (i + n, i)):
            total -= float(p[a] @ z[b] / (p[a].norm() * z[b].norm()))
    assert simsiam_loss(p, z).item() == pytest.approx(total / (2 * n), abs=1e-6)


def test_swapping_the_views_changes_nothing():
    p, z = torch.randn(6, 4), torch.randn(6, 4)
    assert simsiam_loss(p, z).item() == pytest.approx(simsiam_loss(p.roll(3, 0), z.roll(3, 0)).item())


def test_no_gradient_reaches_the_target_branch():
    p, z = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    simsiam_loss(p, z).backward()
    assert z.grad is None and p.grad is not None and p.grad.abs().sum() > 0


def test_the_gradient_is_that_of_constant_targets():
    """Through the heads: the same gradients as with targets computed beforehand."""
    torch.manual_seed(0)
    heads, x = SimSiamHeads(6, 8, 4), torch.randn(8, 6)
    z, p = heads(x).chunk(2, 1)
    constant = z.detach().clone()
    got = torch.autograd.grad(simsiam_loss(p, z), list(heads.parameters()), retain_graph=True)
    want = torch.autograd.grad(simsiam_loss(p, constant), list(heads.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("shapes", [((4, 3), (4, 2)), ((3, 2), (3, 2)), ((0, 2), (0, 2)), ((4,), (4,))])
def test_wrong_shapes(shapes):
    with pytest.raises(ValueError, match="2N"):
        simsiam_loss(*(torch.zeros(s) for s in shapes))
