"""Label-free signals, recomputed by loops; their extremes; and when a user is warned."""

import math

import pytest
import torch

from fedqssl.evaluation.collapse import Collapse, alignment, collapse_signals, effective_rank, uniformity


def features(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def unit(row: torch.Tensor) -> list[float]:
    length = math.sqrt(sum(float(v) ** 2 for v in row))
    return [float(v) / length for v in row]


def squared_distance(a: list[float], b: list[float]) -> float:
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(("n", "dim"), [(2, 1), (5, 3), (9, 16)])
def test_by_hand(n, dim):
    x, y = features(n, dim, 1), features(n, dim, 2)
    u, v = [unit(row) for row in x], [unit(row) for row in y]
    assert alignment(x, y) == pytest.approx(sum(squared_distance(a, b) for a, b in zip(u, v, strict=True)) / n)
    pairs = [math.exp(-2 * squared_distance(u[i], u[j])) for i in range(n) for j in range(n) if i < j]
    assert uniformity(x) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    centred = x.double() - x.double().mean(0)
    s = torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0).sqrt()
    p = [float(value / s.sum()) for value in s if value > 1e-7 * s.max()]
    assert effective_rank(x) == pytest.approx(math.exp(-sum(q * math.log(q) for q in p)), rel=1e-5)


def test_scale_does_not_matter_and_the_signals_are_put_together():
    x, y = features(20, 8, 1), features(20, 8, 2)
    found = collapse_signals(x, y)
    assert found == Collapse(alignment(x, y), uniformity(x), effective_rank(x), 8)
    other = collapse_signals(1e-3 * x, 50 * y)
    assert other.alignment == pytest.approx(found.alignment) and other.effective_rank == pytest.approx(
        found.effective_rank
    )
    assert found.to_json() == {
        "alignment": found.alignment,
        "uniformity": found.uniformity,
        "effective_rank": found.effective_rank,
        "dim": 8,
    }


@pytest.mark.parametrize("row", [torch.ones(6), torch.zeros(6), torch.tensor([1e-3, 2, -3, 4, 1e4, 6]) / 3])
def test_equal_rows_are_a_collapse(row):
    x = row.expand(10, 6)
    found = collapse_signals(x, x)
    assert found.effective_rank == 1 and found.uniformity == 0 and found.alignment == 0
    assert found.warning() is not None


def test_one_direction_has_rank_1_and_equal_directions_have_rank_dim():
    line = features(40, 1) * torch.tensor([[1.0, -2.0, 0.5]])
    assert effective_rank(line) == pytest.approx(1, abs=1e-5)
    corners = torch.cat([torch.eye(5), -torch.eye(5)])
    assert effective_rank(corners) == pytest.approx(5)


def test_spread_features_are_more_uniform_than_clustered_ones():
    spread = features(200, 16)
    clustered = features(1, 16, 3) + 0.1 * spread
    assert uniformity(spread) < -3 < uniformity(clustered) < 0


def test_the_warning_says_what_to_do():
    assert Collapse(0.1, -1.0, 2.0, 64).warning() is None
    said = Collapse(0.1, -0.1, 1.26, 64).warning()
    assert said is not None and "lower lr" in said
    assert said.startswith("the features have collapsed: their effective rank is 1.3 of 64")


@pytest.mark.parametrize("shapes", [((1, 4), (1, 4)), ((3, 4), (3, 5)), ((3,), (3,))])
def test_wrong_shapes(shapes):
    with pytest.raises(ValueError, match="at least 2 images"):
        collapse_signals(*(torch.zeros(s) for s in shapes))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_model_is_an_error_that_says_so(value):
    x, y = features(4, 3), features(4, 3)
    y[2, 1] = value
    for pair in ((x, y), (y, x)):
        with pytest.raises(ValueError, match="diverged"):
            collapse_signals(*pair)
