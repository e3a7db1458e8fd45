"""The objective without negatives: SimSiam, the feature-prediction objective of the Fed-QSSL paper (Sec. 2).

Chen & He, "Exploring Simple Siamese Representation Learning", CVPR 2021.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def simsiam_loss(p: Tensor, z: Tensor) -> Tensor:
    """Negative cosine between the prediction from one view and the other view, whose branch gets no gradient.

    Paper, Sec. 2, with the cosine distance ``D(a, b) = -a.b / (|a| |b|)``, taken over both views of every image::

        L = 1/2N sum_i D(p_i, stop(z_q(i)))      p_i = g(z_i), q(i) = i + N mod 2N, the other view of the same image

    Args:
        p: predictions (2N, d); rows i and i + N are the two views of image i.
        z: projections (2N, d), in the same order.

    Returns:
        The mean loss, a scalar in [-1, 1].

    Example:
        >>> import torch
        >>> z = torch.eye(2).repeat(2, 1)  # two images, both views equal
        >>> simsiam_loss(z, z).item()
        -1.0
    """
    if p.shape != z.shape or z.ndim != 2 or len(z) == 0 or len(z) % 2:
        raise ValueError(
            f"p and z must both be (2N, d), the two views stacked by torch.cat, not {tuple(p.shape)} and {tuple(z.shape)}"
        )
    target = z.detach().roll(len(z) // 2, 0)  # (2n, d), row i holds z_q(i)
    loss: Tensor = -F.cosine_similarity(p, target, dim=1).mean()
    return loss


class SimSiamHeads(nn.Module):
    """Projector f and predictor g behind a feature extractor; one tensor out, so that it is traced and converted as a whole.

    The projector ends in a batch norm and the predictor has a bottleneck of a quarter, as in Chen & He, unless
    ``dim_predictor`` says how wide it is.
    """

    def __init__(
        self, dim_in: int, dim_hidden: int = 128, dim_out: int = 128, dim_predictor: int | None = None
    ) -> None:
        super().__init__()
        self.projector = nn.Sequential(
            nn.Linear(dim_in, dim_hidden, bias=False),
            nn.BatchNorm1d(dim_hidden),
            nn.ReLU(),
            nn.Linear(dim_hidden, dim_out, bias=False),
            nn.BatchNorm1d(dim_out),
        )
        bottleneck = max(dim_out // 4, 1) if dim_predictor is None else dim_predictor
        self.predictor = nn.Sequential(
            nn.Linear(dim_out, bottleneck, bias=False),
            nn.BatchNorm1d(bottleneck),
            nn.ReLU(),
            nn.Linear(bottleneck, dim_out),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map features (2N, dim_in) to ``[z, p]`` side by side, (2N, 2 dim_out)."""
        z = self.projector(features)
        return torch.cat([z, self.predictor(z)], 1)


__all__ = ["SimSiamHeads", "simsiam_loss"]
