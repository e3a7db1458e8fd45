"""The supervised linear learner that Theorem 2's evenness is compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def supervised_features(x: Tensor, labels: Tensor, classes: int, m: int, ridge: float = 1e-3) -> Tensor:
    """Features w (m, d) of the best two-layer linear network ``v w x`` for one-hot labels y under squared loss.

    Its optimum is reduced-rank ridge regression: ``W = E[y x^T] (E[x x^T] + ridge I)^-1``, projected on the m leading principal
    directions of its predictions; w spans the rows of that. The counterpart of Eckart-Young-Mirsky with labels.
    """
    if not 1 <= m <= x.shape[1]:
        raise ValueError(f"rank m must lie in 1..{x.shape[1]}, the dimension of the data; not {m}")
    x = x.double()
    y = torch.nn.functional.one_hot(labels, classes).double()
    X = x.mT @ x / len(x) + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    W = torch.linalg.solve(X, x.mT @ y / len(x)).mT  # (classes, d)
    _, vectors = torch.linalg.eigh(W @ X @ W.mT)
    features: Tensor = vectors.flip(1)[:, :m].mT @ W
    return features
