"""The linear self-supervised model of Sec. 4 and App. A.1: ``f_w(x) = w x`` with w in R^(m x d).

Legend: w parameters (m, d), X covariance E[x x^T] (d, d), x samples (N, d), ||.|| Frobenius norm, lambda_i eigenvalues
of X from the largest. ``w`` may have leading batch dimensions. Everything is float64.

Two objectives are in use, and they differ by a factor: ``2 L_SSL(w) + ||X||^2 = ||X - w^T w||^2``. Gradients, Hessians and
the weak-convexity constant of L_SSL are therefore half of those of ``L(w) = ||X - w^T w||^2``, which the analysis uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def covariance(x: Tensor) -> Tensor:
    """``X_k = (1/|D_k|) sum_i x_i x_i^T``, not centred (App. A.1)."""
    x = x.double()
    return x.mT @ x / x.shape[-2]


def global_covariance(X: Sequence[Tensor], p: Tensor) -> Tensor:
    """``X_bar = sum_k p_k X_k`` with ``p_k = |D_k| / |D|``."""
    return torch.einsum("k,kij->ij", p.double(), torch.stack(list(X)))


def ssl_objective_sampled(w: Tensor, x: Tensor, xi: Tensor, xi2: Tensor) -> Tensor:
    """``L_SSL(w) = -mean[(w x + xi)^T (w x + xi')] + 1/2 ||w^T w||^2`` on samples, with the noise as drawn."""
    z = x @ w.mT
    return -((z + xi) * (z + xi2)).sum(-1).mean() + 0.5 * (w.mT @ w).square().sum()


def ssl_objective(w: Tensor, X: Tensor) -> Tensor:
    """The expectation of L_SSL over independent zero-mean noise: ``-tr(w X w^T) + 1/2 ||w^T w||^2``."""
    return -((w @ X) * w).sum((-2, -1)) + 0.5 * (w.mT @ w).square().sum((-2, -1))


def objective(w: Tensor, X: Tensor) -> Tensor:
    """``L(w) = ||X - w^T w||^2 = 2 L_SSL(w) + ||X||^2``."""
    return (X - w.mT @ w).square().sum((-2, -1))


def gradient(w: Tensor, X: Tensor) -> Tensor:
    """``grad L(w) = 4 w (w^T w - X)``; the gradient of L_SSL is half of it."""
    return 4 * (w @ w.mT @ w - w @ X)


def hessian_product(w: Tensor, X: Tensor, v: Tensor) -> Tensor:
    """``D grad L(w)[v] = 4 (v (w^T w - X) + w (v^T w + w^T v))``."""
    return 4 * (v @ (w.mT @ w - X) + w @ (v.mT @ w + w.mT @ v))


def eigen(X: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues from the largest, and eigenvectors as columns in the same order."""
    values, vectors = torch.linalg.eigh(X)
    return values.flip(-1), vectors.flip(-1)


def optimum(X: Tensor, m: int) -> Tensor:
    """A global minimiser of L by Eckart-Young-Mirsky: rows ``sqrt(lambda_i) v_i^T``, i <= m.

    The paper says that the rows are eigenvectors; they are eigenvectors scaled by the root of their eigenvalue. Any rotation
    ``u w`` with orthogonal u is as good.
    """
    d = X.shape[-1]
    if not 1 <= m <= d:
        raise ValueError(f"rank m must lie in 1..{d}, the dimension of the data; not {m}")
    values, vectors = eigen(X.double())
    return values[:m].clamp(min=0).sqrt()[:, None] * vectors[:, :m].mT


def minimum(X: Tensor, m: int) -> float:
    """``min L``: the sum of squares of the eigenvalues that rank m leaves out."""
    return float(objective(optimum(X, m), X))


def weak_convexity(X: Tensor) -> float:
    """``rho = 4 lambda_max(X)``: L + rho/2 ||w||^2 is convex, and for no smaller rho (attained at w = 0).

    The paper asks for ``rho >= 4 ||X||``; with the Frobenius norm of its notation that is sufficient, not necessary.
    """
    return 4 * max(0.0, float(eigen(X)[0][0]))


def align(w: Tensor, target: Tensor) -> Tensor:
    """``u w`` for the orthogonal u that brings w closest to ``target`` (Procrustes): L cannot tell them apart."""
    left, _, right = torch.linalg.svd(target @ w.mT)
    turned: Tensor = left @ right @ w
    return turned
