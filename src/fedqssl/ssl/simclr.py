"""The contrastive objective: InfoNCE of the Fed-QSSL paper (Sec. 2), batched as SimCLR's NT-Xent.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def nt_xent(z: Tensor, temperature: float = 0.5) -> Tensor:
    """InfoNCE over a batch of two views: every other row but the positive one is a negative.

    Paper, Sec. 2, with the cosine distance ``D(a, b) = -a.b / (|a| |b|)``::

        L = 1/2N sum_i -log( D+_i / (D+_i + sum_j D-_ij) )
        D+_i  = exp(-D(z_i, z_p(i)) / tau)       p(i) = i + N mod 2N, the other view of the same image
        D-_ij = exp(-D(z_i, z_j) / tau)          j not in {i, p(i)}

    that is ``L = 1/2N sum_i [ logsumexp_{j != i} s_ij - s_ip(i) ]`` with ``s_ij = cos(z_i, z_j) / tau``.

    Args:
        z: projections (2N, d); rows i and i + N are the two views of image i.
        temperature: tau, the sharpness of the exponential; must be positive.

    Returns:
        The mean loss, a scalar. A batch of one image has no negatives: its loss is exactly 0.

    Example:
        >>> import torch
        >>> z = torch.eye(2).repeat(2, 1)  # two images, both views equal, images orthogonal
        >>> round(nt_xent(z, temperature=1.0).item(), 4)  # log(1 + 2 / e)
        0.5514
    """
    # Legend: n = N images, z (2n, d), s (2n, 2n) similarities over tau.
    if z.ndim != 2 or len(z) == 0 or len(z) % 2:
        raise ValueError(f"z must be (2N, d), the two views stacked by torch.cat, not {tuple(z.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}; SimCLR uses 0.5 on CIFAR")
    n = len(z) // 2
    unit = F.normalize(z, dim=1) * temperature**-0.5  # (2n, d)
    s = unit @ unit.T  # (2n, 2n), the only tensor of that size kept for the backward pass
    s = s.fill_diagonal_(float("-inf"))  # j != i
    positive = s.diagonal(n).sum() + s.diagonal(-n).sum()
    loss: Tensor = (s.logsumexp(1).sum() - positive) / (2 * n)
    return loss


__all__ = ["nt_xent"]
