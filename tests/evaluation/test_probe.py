import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedqssl.evaluation import extract_features, fit_classifier, knn_accuracy, linear_probe


def blobs(n: int, d: int, classes: int, spread: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return centres[y] + spread * torch.randn(n, d, generator=g), y


def test_separable_data_is_solved():
    train, test = blobs(600, 16, 5, 0.1, 0), blobs(200, 16, 5, 0.1, 1)
    result = linear_probe(*train, *test, num_classes=5)
    assert result.accuracy == 1.0 and result.train_accuracy == 1.0
    assert knn_accuracy(*train, *test) == 1.0


def test_random_labels_are_chance():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(3000, 8, generator=g), torch.randint(0, 10, (3000,), generator=g)
    result = linear_probe(x[:2000], y[:2000], x[2000:], y[2000:], num_classes=10)
    assert result.accuracy == pytest.approx(0.1, abs=0.04)
    assert knn_accuracy(x[:2000], y[:2000], x[2000:], y[2000:]) == pytest.approx(0.1, abs=0.04)


def test_fit_reaches_the_minimum_of_the_stated_objective():
    x, y = blobs(500, 6, 3, 1.5, 0)
    l2 = 1e-2
    classifier = fit_classifier(x, y, 3, l2=l2)
    mean, std = x.mean(0), x.std(0, unbiased=False)
    weight = (classifier.weight * std).detach().requires_grad_()
    bias = (classifier.bias + classifier.weight @ mean).detach().requires_grad_()
    loss = F.cross_entropy((x - mean) / std @ weight.T + bias, y) + l2 / 2 * weight.square().sum()
    gradients = torch.autograd.grad(loss, (weight, bias))
    assert max(g.abs().max().item() for g in gradients) < 1e-4


def test_probe_is_deterministic_and_ignores_scale_and_shift():
    train, test = blobs(400, 10, 4, 1.0, 0), blobs(400, 10, 4, 1.0, 1)
    result = linear_probe(*train, *test, num_classes=4)
    assert result == linear_probe(*train, *test, num_classes=4)
    moved = linear_probe(train[0] * 50 + 7, train[1], test[0] * 50 + 7, test[1], num_classes=4)
    assert moved.accuracy == pytest.approx(result.accuracy, abs=0.01)


def test_constant_and_collapsed_features_are_harmless():
    x, y = blobs(200, 4, 2, 0.1, 0)
    padded = torch.cat([x, torch.full((200, 2), 3.0)], 1)
    assert linear_probe(padded, y, padded, y, num_classes=2).accuracy == 1.0
    flat = linear_probe(torch.ones_like(x), y, torch.ones_like(x), y, num_classes=2)
    assert flat.accuracy == pytest.approx(max(y.float().mean().item(), 1 - y.float().mean().item()))


def test_probe_works_on_features_cached_without_gradients():
    x, y = blobs(50, 4, 2, 0.1, 0)
    with torch.no_grad():
        assert linear_probe(x, y, x, y, num_classes=2).accuracy == 1.0


def test_knn_vote_by_hand():
    degrees = torch.tensor([0.0, 20.0, 30.0, 90.0]) * math.pi / 180
    bank, labels = torch.stack([degrees.cos(), degrees.sin()], 1), torch.tensor([0, 1, 1, 2])
    query = torch.tensor([[5.0, 0.0]])  # cosines 1, .940, .866, 0
    for temperature, winner in ((0.1, 0), (0.5, 1)):
        votes = (degrees.cos() / temperature).exp()
        assert (votes[0] > votes[1] + votes[2]) == (winner == 0)
        assert knn_accuracy(bank, labels, query, torch.tensor([winner]), k=3, temperature=temperature) == 1.0
    assert knn_accuracy(bank, labels, query, torch.tensor([0]), k=1) == 1.0


def test_knn_chunks_and_large_k_agree():
    train, test = blobs(80, 5, 3, 1.0, 0), blobs(33, 5, 3, 1.0, 1)
    assert knn_accuracy(*train, *test, chunk=7) == knn_accuracy(*train, *test)
    assert knn_accuracy(*train, *test, k=10_000) == knn_accuracy(*train, *test, k=80)


def test_bad_input_says_what_to_do():
    x, y = blobs(10, 4, 2, 0.1, 0)
    with pytest.raises(ValueError, match="test features must be"):
        linear_probe(x, y, x, y[:5], num_classes=2)
    with pytest.raises(ValueError, match="num_classes is 1"):
        linear_probe(x, torch.ones_like(y), x, y, num_classes=1)
    with pytest.raises(ValueError, match="diverged"):
        linear_probe(x * float("nan"), y, x, y, num_classes=2)
    with pytest.raises(ValueError, match="k must be"):
        knn_accuracy(x, y, x, y, k=0)
    with pytest.raises(ValueError, match="l2"):
        fit_classifier(x, y, 2, l2=-1)


class Recorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = nn.BatchNorm2d(3), nn.Dropout(0.5)
        self.batches: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.norm.training and not torch.is_grad_enabled()
        assert x.is_contiguous(memory_format=torch.channels_last)
        self.batches.append(x)
        return self.frozen(self.norm(x)).mean((2, 3))


def test_features_are_batched_in_eval_mode_and_modes_come_back():
    model = Recorder()
    model.frozen.eval()
    images = (torch.arange(7 * 48) % 256).to(torch.uint8).view(7, 3, 4, 4)
    features = extract_features(model, images, batch_size=3)
    assert [len(batch) for batch in model.batches] == [3, 3, 1]
    assert torch.allclose(features, (images / 255).mean((2, 3)), atol=1e-4) and not features.requires_grad
    assert model.training and model.norm.training and not model.frozen.training
    assert model.norm.running_mean is not None and torch.equal(model.norm.running_mean, torch.zeros(3))


def test_modes_come_back_after_an_error():
    model = nn.Conv2d(1, 1, 1)
    with pytest.raises(RuntimeError):
        extract_features(model, torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    assert model.training


def test_features_reject_divided_images():
    with pytest.raises(ValueError, match="255"):
        extract_features(nn.Identity(), torch.rand(1, 3, 4, 4))


@pytest.mark.parametrize(("bits", "behind"), [(12, 0.03), (4, 0.06)])
def test_a_low_bit_classifier_comes_close_to_one_in_floats(bits, behind):
    """Three overlapping classes in features like those of a network: positive, most of them small."""
    from fedqssl.evaluation.local import fit_lowbit_classifier
    from fedqssl.evaluation.probe import linear_probe

    draws = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (900,), generator=draws)
    centres = torch.rand(3, 64, generator=draws)
    x = (centres[y] + 1.2 * torch.randn(900, 64, generator=draws)).relu()
    train, test = slice(0, 600), slice(600, 900)
    floats = linear_probe(x[train], y[train], x[test], y[test], 3, l2=1e-2).accuracy
    assert 0.6 < floats < 0.95  # over seeds 0.73 to 0.81
    low = fit_lowbit_classifier(x[train], y[train], 3, bits).accuracy(x[test], y[test])
    assert low > floats - behind
