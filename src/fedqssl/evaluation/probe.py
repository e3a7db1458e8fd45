"""Linear evaluation of frozen features, and a nearest-neighbour monitor that needs no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ProbeResult:
    """Shares of correctly classified samples, in [0, 1]."""

    accuracy: float
    train_accuracy: float


def linear_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    num_classes: int,
    *,
    l2: float = 1e-4,
    max_iterations: int = 1000,
) -> ProbeResult:
    """Accuracy of `fit_classifier` on train and test features; the test set plays no part in the fit.

    Args:
        train_x: features (N, d).
        train_y: labels (N,) in [0, num_classes).
        test_x: features (M, d).
        test_y: labels (M,).
        num_classes: number of classes C.
        l2: weight decay of the objective.
        max_iterations: a bound on L-BFGS, which stops by itself when converged.
    """
    train_y, test_y = train_y.to(train_x.device), test_y.to(test_x.device)
    _check(test_x, test_y, "test")
    classifier = fit_classifier(train_x, train_y, num_classes, l2=l2, max_iterations=max_iterations)
    return ProbeResult(_accuracy(classifier, test_x, test_y), _accuracy(classifier, train_x, train_y))


def fit_classifier(
    x: Tensor, y: Tensor, num_classes: int, *, l2: float = 1e-4, max_iterations: int = 1000
) -> nn.Linear:
    """Multinomial logistic regression on standardised features, by L-BFGS from zero: deterministic.

    ``min_{W, b}  1/N sum_i -log softmax(W u_i + b)[y_i] + l2/2 |W|^2``  with  ``u = (x - mean) / std``

    Returns:
        The classifier with the standardisation folded in, so that it takes x itself:
        ``W' = W / std``, ``b' = b - W' mean``.
    """
    _check(x, y, "train")
    if not l2 >= 0:
        raise ValueError(f"l2 must not be negative, not {l2}")
    if not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise ValueError(f"labels span [{int(y.min())}, {int(y.max())}] but num_classes is {num_classes}")
    x = x.float()
    mean, std = x.mean(0), x.std(0, unbiased=False)
    std = torch.where(std > 1e-6 * std.max(), std, torch.inf)  # a constant feature says nothing: weight 0
    u = (x - mean) / std  # (N, d)
    weight = torch.zeros(num_classes, x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(num_classes, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=max_iterations,
        max_eval=2 * max_iterations,
        history_size=20,
        tolerance_grad=1e-5,
        tolerance_change=1e-7,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(u, weight, bias), y) + l2 / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    classifier = nn.Linear(x.shape[1], num_classes, device=x.device)
    with torch.no_grad():
        classifier.weight.copy_(weight / std)
        classifier.bias.copy_(bias - classifier.weight @ mean)
    return classifier


@torch.no_grad()
def knn_probabilities(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.1,
    chunk: int = 1000,
) -> Tensor:
    """Shares (M, C) of a weighted vote of the k nearest training features by cosine similarity.

    ``p_c ~ sum_{j in kNN(x), y_j = c} exp(cos(x, x_j) / tau)`` (Wu et al., 2018), in chunks of queries.
    """
    _check(train_x, train_y, "train")
    if k < 1 or not temperature > 0:
        raise ValueError(f"k must be at least 1 and temperature positive, not {k} and {temperature}")
    bank = F.normalize(train_x.float(), dim=1)
    queries = F.normalize(test_x.float(), dim=1)
    found = []
    for query in torch.split(queries, chunk):
        similarity, index = (query @ bank.T).topk(min(k, len(bank)), dim=1, sorted=False)  # (m, k)
        found.append(_votes(train_y[index], ((similarity - 1) / temperature).exp_(), num_classes))
    return F.normalize(torch.cat(found), p=1.0, dim=1)


def _votes(labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Sums (M, C) of the weights (M, k) by label."""
    if weights.device.type != "cpu":  # scatter_add_ adds in another order every time there
        theirs = labels[:, :, None] == torch.arange(num_classes, device=labels.device)  # (M, k, C)
        return (theirs * weights[:, :, None]).sum(1)
    return torch.zeros(len(labels), num_classes).scatter_add_(1, labels, weights)


@torch.no_grad()
def knn_accuracy(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, **vote: Any) -> float:
    """Accuracy of the largest share of :func:`knn_probabilities`, whose ``k``, ``temperature`` and ``chunk`` may be given."""
    train_y, test_y = train_y.to(train_x.device), test_y.to(test_x.device)
    _check(train_x, train_y, "train")
    _check(test_x, test_y, "test")
    shares = knn_probabilities(train_x, train_y, test_x, int(train_y.max()) + 1, **vote)
    return int((shares.argmax(1) == test_y).sum()) / len(test_y)


@torch.no_grad()
def _accuracy(classifier: nn.Linear, x: Tensor, y: Tensor) -> float:
    return float((classifier(x.float()).argmax(1) == y).double().mean())


def _check(x: Tensor, y: Tensor, name: str) -> None:
    if x.ndim != 2 or y.shape != x.shape[:1] or len(x) == 0:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise ValueError(f"{name} features must be (N, d) and labels (N,) with N > 0, not {shapes}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} features hold NaN or infinity; the model diverged, lower its learning rate")


__all__ = ["ProbeResult", "fit_classifier", "knn_accuracy", "knn_probabilities", "linear_probe"]
