"""BYOL's loss by hand, and how its target network follows, in floats and in codes."""

import pytest
import torch
from torch import nn

from fedqssl.lowbit import LowBitOptions, LowBitWeight, Precision, to_lowbit
from fedqssl.ssl.byol import TargetNetwork, against_target, byol_heads, byol_loss
from fedqssl.ssl.objectives import OBJECTIVES


@pytest.mark.parametrize("n", [1, 2, 5])
def test_loss_by_hand(n):
    g = torch.Generator().manual_seed(n)
    p, t = (torch.randn(2 * n, 3, generator=g).double() for _ in range(2))
    total = 0.0
    for i in range(n):
        for a, b in ((i, i + n), (i + n, i)):
            one, two = ([x / sum(y * y for y in row) ** 0.5 for x in row] for row in (p[a].tolist(), t[b].tolist()))
            total += sum((x - y) ** 2 for x, y in zip(one, two, strict=True))
    assert byol_loss(p, t).item() == pytest.approx(total / (2 * n))


def test_gradient_agrees_with_finite_differences_and_spares_the_target():
    g = torch.Generator().manual_seed(0)
    p, t = (torch.randn(6, 4, dtype=torch.float64, generator=g).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda x: byol_loss(x, t.detach()), (p,))
    byol_loss(p, t).backward()
    assert t.grad is None and p.grad.abs().sum() > 0


def test_the_loss_reads_predictions_of_the_network_and_projections_of_the_target():
    outputs, target = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(0))
    read = against_target(outputs, target)
    assert OBJECTIVES["byol"].loss(read, 0.5) == byol_loss(outputs[:, 3:], target[:, :3])
    assert OBJECTIVES["byol"].against is against_target
    assert [name for name, entry in OBJECTIVES.items() if entry.against] == ["byol"]


def test_heads_give_projections_and_predictions_side_by_side():
    heads = byol_heads(16)
    x = torch.rand(4, 16)
    z = heads.projector(x)
    assert torch.allclose(heads(x), torch.cat([z, heads.predictor(z)], 1), atol=1e-5)
    assert isinstance(heads.projector[-1], nn.BatchNorm1d)


def network(bits: int, seed: int, weights: str = "level") -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    return to_lowbit(layers, Precision.for_bits(bits), LowBitOptions(weights=weights, quantize_input=False)).train()


def codes(model: nn.Module) -> list[torch.Tensor]:
    return [m.unpacked().long() for m in model.modules() if isinstance(m, LowBitWeight)]


def shifted(model: nn.Module, by: int) -> None:
    """All codes of the model so many steps up or down, staying on the grid."""
    from fedqssl.quant.packing import pack

    for weight in (m for m in model.modules() if isinstance(m, LowBitWeight)):
        moved = weight.unpacked().long()
        moved = torch.where(moved + by < 2**weight.bits, moved + by, moved - by)
        weight.store(pack(moved.to(torch.uint8), weight.bits), weight.m)


def test_floats_follow_by_the_formula():
    start, model = network(32, 0), network(32, 1)
    target = TargetNetwork(start, 0.9)
    want = [p.detach().clone() for p in start.parameters()]
    for _ in range(3):
        target.follow(model, torch.Generator())
        want = [0.9 * t + 0.1 * p for t, p in zip(want, model.parameters(), strict=True)]
    assert all(torch.allclose(t, w, atol=1e-6) for t, w in zip(target.model.parameters(), want, strict=True))
    assert not any(t.requires_grad for t in target.model.parameters())


@pytest.mark.parametrize("weights", ["level", "value", "literal"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_one_step_behind_catch_up_with_probability_one_minus_m(bits, weights):
    """A hundredth of a cell is not lost: after k steps a share of 1 - m^k has moved, and nothing moves beyond."""
    model = network(bits, 0, weights)
    target = TargetNetwork(model, 0.98)
    before, scales = codes(model), [w.m for w in model.modules() if isinstance(w, LowBitWeight)]
    shifted(model, 1)
    after, draws = codes(model), torch.Generator().manual_seed(0)
    for _ in range(20):
        target.follow(model, draws)
    found = codes(target.model)
    assert all(bool(((f == b) | (f == a)).all()) for f, b, a in zip(found, before, after, strict=True))
    moved = torch.cat([(f == a).flatten() for f, a in zip(found, after, strict=True)]).double().mean()
    assert abs(float(moved) - (1 - 0.98**20)) < 0.04
    assert scales == [w.m for w in target.model.modules() if isinstance(w, LowBitWeight)]


def test_codes_are_averages_in_expectation():
    """Fourteen codes apart at 4 bits, m = 0.75: the mean of many targets lies a quarter of the way."""
    model = network(4, 0)
    start, draws = TargetNetwork(model, 0.75), torch.Generator().manual_seed(0)
    before = codes(model)
    shifted(model, 7)
    after, total = codes(model), [torch.zeros_like(b, dtype=torch.float64) for b in before]
    for _ in range(40):
        target = TargetNetwork(start.model, 0.75)
        target.follow(model, draws)
        total = [s + c for s, c in zip(total, codes(target.model), strict=True)]
    for s, b, a in zip(total, before, after, strict=True):
        assert ((s / 40 - (0.75 * b + 0.25 * a)).abs() < 0.5).all()
        assert abs(float((s / 40 - (0.75 * b + 0.25 * a)).mean())) < 0.02


@pytest.mark.parametrize("bits", [4, 12, 32])
def test_a_target_at_rest_stays_and_one_without_momentum_is_the_network(bits):
    model, draws, x = network(bits, 0), torch.Generator().manual_seed(0), torch.rand(8, 64)
    at_rest = TargetNetwork(model, 0.9)
    at_rest.follow(model, draws)
    assert all(torch.equal(a, b) for a, b in zip(codes(at_rest.model), codes(model), strict=True))
    eager = TargetNetwork(model, 0.0)
    shifted(model, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    eager.follow(model, draws)
    assert torch.equal(eager(x), model(x).detach()) and not eager(x).requires_grad


def test_a_target_is_a_copy_in_the_same_bits():
    model = network(4, 0)
    target = TargetNetwork(model, 0.9)
    held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    assert target.nbytes == held < 0.2 * TargetNetwork(network(32, 0), 0.9).nbytes + 2000
    with pytest.raises(ValueError, match="momentum"):
        TargetNetwork(model, 1.0)
