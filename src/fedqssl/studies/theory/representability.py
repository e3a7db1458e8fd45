"""Representability (Sec. 4, Definition 2): how much of each direction lies in the learned feature space.

Legend: S row space of w (m, d), Pi_S projection, ``r_i = ||Pi_S(e_i)||^2 = sum_j <e_i, v_j>^2`` for orthonormal v_j that span S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.studies.theory.model import covariance, eigen

RANK_TOLERANCE = 1e-10


def row_space(w: Tensor) -> Tensor:
    """Orthonormal basis (d, s) of the space spanned by the rows of w, s = its numerical rank."""
    _, values, vectors = torch.linalg.svd(w.double(), full_matrices=False)
    basis: Tensor = vectors[values > RANK_TOLERANCE * values.max().clamp(min=1e-300)].mT
    return basis


def projected(basis: Tensor, directions: Tensor) -> Tensor:
    """``||Pi_S(u_i)||^2`` for unit directions as columns (d, C) and an orthonormal basis of S (d, s)."""
    return (basis.mT @ directions).square().sum(0).clamp(max=1.0)


def representability(w: Tensor) -> Tensor:
    """``r`` (d,) of the standard basis; in [0, 1], sums to dim S, the same for ``u w`` with any invertible u."""
    basis = row_space(w)
    return projected(basis, torch.eye(basis.shape[0], dtype=torch.float64))


def lower_bound(w: Tensor) -> Tensor:
    """``r_j >= ||w e_j||^2 / ||w^T w||_2``, for any w, because ``w^T w <= ||w^T w||_2 Pi_S``.

    It is what Theorem 2's proof gives when its sum runs over the m directions of S and not over all d.
    """
    squares = w.double().square().sum(0)
    largest: Tensor = torch.linalg.matrix_norm(w.double(), 2).square()
    return squares / largest.clamp(min=1e-300)


def printed_bound(w: Tensor, target: Tensor, diagonal: float, order: float = 0.0) -> Tensor:
    """Theorem 2 as printed, with eps = w - w*, the covariance's leading diagonal entry and O(d^(-2/5)) taken as ``order``.

    ``(diagonal - order + 2 e_j^T w*^T eps e_j + ||eps e_j||^2) / (diagonal + order + ||2 w*^T eps + eps^T eps||)``

    ``(e_j^T eps)^2`` has no meaning for an (m, d) matrix and is read as ``||eps e_j||^2``.
    """
    eps = w - target
    change = 2 * target.mT @ eps + eps.mT @ eps
    top = diagonal - order + 2 * (target * eps).sum(0) + eps.square().sum(0)
    bound: Tensor = top / (diagonal + order + change.norm())
    return bound


def spread(r: Tensor) -> float:
    """Largest difference of r between two clients (rows) in one direction (columns)."""
    return float((r.amax(0) - r.amin(0)).max())


@dataclass(frozen=True, eq=False)
class EncoderRepresentability:
    """``r`` (C,) of every client for the top-C directions of the pooled features, and each direction's share of variance."""

    r: dict[str, Tensor]
    share: Tensor
    rank: int
    width: int
    centred: bool

    @property
    def table(self) -> Tensor:
        """(clients, C), clients in order of their names."""
        return torch.stack([self.r[name] for name in sorted(self.r)])

    @property
    def spread(self) -> float:
        """Largest difference between two clients in one direction."""
        return spread(self.table)

    def to_json(self) -> dict[str, object]:
        """For ``theory.json``."""
        return {
            **{"rank": self.rank, "directions": len(self.share), "width": self.width, "centred": self.centred},
            "r": {name: r.tolist() for name, r in self.r.items()},
            "share": self.share.tolist(),
            "r_min": float(self.table.min()),
            "r_mean": float(self.table.mean()),
            "spread": self.spread,
        }


def _spectrum(features: Tensor, centre: bool) -> tuple[Tensor, Tensor]:
    x = features.double()
    values, vectors = eigen(covariance(x - x.mean(0) if centre else x))
    return values.clamp(min=0), vectors


def encoder_representability(
    features: Mapping[str, Tensor], rank: int, directions: int, centre: bool = False
) -> EncoderRepresentability:
    """For real encoders: S_k = top-``rank`` eigenspace of client k's features (N_k, d), directions = top eigenvectors of all.

    Covariances are not centred, as in the paper, unless ``centre`` is set.
    """
    if not features:
        raise ValueError("no features were given; give those of at least one client")
    widths = {f.shape[1] for f in features.values()}
    if len(widths) != 1:
        raise ValueError(f"clients' features must have one width, not {sorted(widths)}")
    d = widths.pop()
    for name, value in (("rank m", rank), ("directions C", directions)):
        if not 1 <= value <= d:
            raise ValueError(f"{name} must lie in 1..{d}, the width of the features; not {value}")
    values, vectors = _spectrum(torch.cat(list(features.values())), centre)
    wanted = vectors[:, :directions]
    r = {name: projected(_spectrum(f, centre)[1][:, :rank], wanted) for name, f in features.items()}
    return EncoderRepresentability(r, values[:directions] / values.sum().clamp(min=1e-300), rank, d, centre)
