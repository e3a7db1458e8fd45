"""An objective without negatives or a second network: variance, invariance, covariance.

Bardes, Ponce & LeCun, "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning", ICLR 2022.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

VARIANCE, COVARIANCE = 1.0, 1 / 25
"""Weights of the terms relative to the invariance term; the paper's 25, 25 and 1 divided by 25, so that learning rates are
those of the other objectives."""
EPSILON = 1e-4


def vicreg(z: Tensor) -> Tensor:
    """Views of an image agree, every dimension keeps a spread of 1, dimensions are uncorrelated.

    ``L = 1/(N d) sum_i |a_i - b_i|^2 + V(a) + V(b)``
    ``V(z) = 1/2d sum_j max(0, 1 - sqrt(Var(z^j) + eps)) + 1/25d sum_{j != k} C(z)_jk^2``

    with a and b the projections of the two views and C their covariance (both unbiased, over N - 1).

    Args:
        z: projections (2N, d); rows i and i + N are the two views of image i, N at least 2.

    Returns:
        The loss, a scalar that is never negative.

    Example:
        >>> import torch
        >>> vicreg(torch.zeros(8, 3)).item()  # collapsed: all of the variance term, 1 - sqrt(eps)
        0.9900000095367432
    """
    if z.ndim != 2 or len(z) < 4 or len(z) % 2:
        raise ValueError(
            f"z must be (2N, d) with N at least 2, the two views stacked by torch.cat, not {tuple(z.shape)}"
        )
    a, b = z.chunk(2)
    loss = F.mse_loss(a, b)
    for view in (a, b):
        centred = view - view.mean(0)
        covariance = centred.T @ centred / (len(view) - 1)  # (d, d)
        variance = covariance.diagonal()
        loss = loss + VARIANCE / 2 * F.relu(1 - (variance + EPSILON).sqrt()).mean()
        off_diagonal = covariance.square().sum() - variance.square().sum()
        loss = loss + COVARIANCE * off_diagonal / z.shape[1]
    return loss


def expander(dim_in: int, dim: int = 256) -> nn.Sequential:
    """VICReg's head: three linear layers, wider than SimCLR's because decorrelation needs dimensions."""
    return nn.Sequential(
        nn.Linear(dim_in, dim, bias=False),
        nn.BatchNorm1d(dim),
        nn.ReLU(),
        nn.Linear(dim, dim, bias=False),
        nn.BatchNorm1d(dim),
        nn.ReLU(),
        nn.Linear(dim, dim),
    )


__all__ = ["expander", "vicreg"]
