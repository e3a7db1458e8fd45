"""Theorem 2: representability, its bounds, evenness, and encoders' features."""

import pytest
import torch

from fedqssl.studies.theory import Settings
from fedqssl.studies.theory.data import Sources, client_data
from fedqssl.studies.theory.model import optimum
from fedqssl.studies.theory.randomness import generator
from fedqssl.studies.theory.representability import (
    encoder_representability,
    lower_bound,
    printed_bound,
    representability,
)
from fedqssl.studies.theory.supervised import supervised_features
from fedqssl.studies.theory.theorem2 import theorem2


def _w(m: int, d: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("m", [1, 4, 10])
def test_r_lies_in_the_unit_interval_and_sums_to_the_dimension(m: int) -> None:
    r = representability(_w(m))
    assert bool(((r >= 0) & (r <= 1)).all()) and float(r.sum()) == pytest.approx(m)
    doubled = torch.cat([_w(m), 2 * _w(m)])[:10]
    assert float(representability(doubled).sum()) == pytest.approx(torch.linalg.matrix_rank(doubled).item())


def test_r_does_not_depend_on_the_basis_of_the_space() -> None:
    w, turn = _w(4), torch.linalg.qr(_w(4, 4, 1)).Q
    assert torch.allclose(representability(turn @ w), representability(w))
    assert torch.allclose(representability(_w(4, 4, 2) @ w), representability(w))


def test_r_is_the_squared_projection() -> None:
    w = _w(3)
    projection = w.mT @ torch.linalg.inv(w @ w.mT) @ w
    assert torch.allclose(representability(w), projection.diagonal())


def test_lower_bound_is_below_r_for_any_w_and_tight_for_scaled_rotations() -> None:
    for seed in range(50):
        w = _w(4, seed=seed) * torch.logspace(-3, 1, 10, dtype=torch.float64)
        assert bool((representability(w) - lower_bound(w) >= -1e-12).all())
    even = 3 * torch.linalg.qr(_w(10, 4)).Q.mT
    assert torch.allclose(representability(even), lower_bound(even))


def test_printed_bound_by_hand() -> None:
    best, w = (
        torch.diag(torch.tensor([2.0, 1.0, 0.0])).double()[:2],
        torch.diag(torch.tensor([2.5, 1.0, 0.0])).double()[:2],
    )
    # eps = 0.5 at (0, 0): 2 * 2 * 0.5 + 0.25 = 2.25 on top; the change of w^T w is 2.25 as well
    assert printed_bound(w, best, 4.0).tolist() == pytest.approx([6.25 / 6.25, 4 / 6.25, 4 / 6.25])
    assert printed_bound(best, best, 4.0).tolist() == [1.0, 1.0, 1.0]
    assert printed_bound(best, best, 4.0, 1.0).tolist() == pytest.approx([0.6] * 3)


def test_supervised_features_follow_labels_and_self_supervised_ones_follow_variance() -> None:
    data = client_data(Sources(32, 4, majority=2000), 1, generator(0, "supervised"))
    with_labels = representability(supervised_features(data.x, data.labels, 8, 1))
    without = representability(optimum(data.covariance, 4))
    assert with_labels[1] > 0.95 and with_labels[[0, 2, 3]].max() < 0.05
    assert without[:4].min() > 0.95
    with pytest.raises(ValueError, match=r"rank m must lie in 1\.\.32"):
        supervised_features(data.x, data.labels, 8, 33)


def test_encoder_representability_by_hand() -> None:
    e = torch.eye(4, dtype=torch.float64)
    features = {"a": torch.stack([3 * e[0], 2 * e[1]]), "b": torch.stack([3 * e[0], 2 * e[2]])}
    found = encoder_representability(features, rank=2, directions=3)
    assert found.r["a"].tolist()[0] == pytest.approx(1) and found.r["b"].tolist()[0] == pytest.approx(1)
    assert float(found.r["a"][1:].sum()) == pytest.approx(1) and found.spread == pytest.approx(1)
    assert found.share.tolist() == pytest.approx([18 / 26, 4 / 26, 4 / 26])


def test_encoder_representability_refuses_bad_input() -> None:
    x = torch.randn(20, 4)
    with pytest.raises(ValueError, match=r"rank m must lie in 1\.\.4"):
        encoder_representability({"a": x}, 5, 2)
    with pytest.raises(ValueError, match=r"directions C must lie in 1\.\.4"):
        encoder_representability({"a": x}, 2, 0)
    with pytest.raises(ValueError, match="one width"):
        encoder_representability({"a": x, "b": x[:, :2]}, 1, 1)
    with pytest.raises(ValueError, match="no features"):
        encoder_representability({}, 1, 1)


def test_small_rank_warns_and_shows_the_limit() -> None:
    said: list[str] = []
    few = Settings(dim=12, clients=3, rank=1, bits=(8,), rounds=20, seeds=2)
    found = theorem2(few, said.append)
    assert any("min r <= m/n = 0.33" in line for line in said) and "m/n" in str(found["warning"])
    table = found["by_bits"]
    assert isinstance(table, dict) and all(both["global"]["r_min"] <= 1 / 3 + 1e-12 for both in table.values())
