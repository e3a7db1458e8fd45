"""The decoupled contrastive loss: InfoNCE without the positive pair in its denominator.

Yeh et al., "Decoupled Contrastive Learning", ECCV 2022.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def dcl(z: Tensor, temperature: float = 0.5) -> Tensor:
    """Decoupled contrastive loss over a batch of two views; easy positives no longer weaken the gradient of the negatives.

    ``L = 1/2N sum_i [ logsumexp_{j not in {i, p(i)}} s_ij - s_ip(i) ]``  with  ``s_ij = cos(z_i, z_j) / tau``  and
    p(i) = i + N mod 2N, the other view of the same image.

    Args:
        z: projections (2N, d); rows i and i + N are the two views of image i, N at least 2.
        temperature: tau, the sharpness of the exponential; must be positive.

    Returns:
        The mean loss, a scalar; unlike InfoNCE it can be negative.

    Example:
        >>> import torch
        >>> z = torch.eye(2).repeat(2, 1)  # two images, both views equal, images orthogonal
        >>> round(dcl(z, temperature=1.0).item(), 4)  # log(2) - 1
        -0.3069
    """
    # Legend: n = N images, z (2n, d), s (2n, 2n) similarities over tau.
    if z.ndim != 2 or len(z) < 4 or len(z) % 2:
        raise ValueError(
            f"z must be (2N, d) with N at least 2, the two views stacked by torch.cat, not {tuple(z.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    n = len(z) // 2
    unit = F.normalize(z, dim=1) * temperature**-0.5  # (2n, d)
    positive = 2 * (unit[:n] * unit[n:]).sum()
    s = (unit @ unit.T).fill_diagonal_(float("-inf"))  # j != i
    s.diagonal(n).fill_(float("-inf"))  # j != p(i)
    s.diagonal(-n).fill_(float("-inf"))
    loss: Tensor = (s.logsumexp(1).sum() - positive) / (2 * n)
    return loss


__all__ = ["dcl"]
