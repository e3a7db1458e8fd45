"""Moreau envelope and proximal map of ``L(w) = ||X - w^T w||^2``, and the smoothness region of App. A.3.

Legend: lambda = 1/rho-bar with rho-bar > rho = 4 lambda_max(X); F(y) = L(y) + (rho-bar/2) ||y - x||^2, which is
(rho-bar - rho)-strongly convex.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.studies.theory.model import eigen, gradient, hessian_product, objective, weak_convexity

TOLERANCE = 1e-9
MAX_ITERATIONS = 20_000


@dataclass(frozen=True, eq=False)
class Envelope:
    """``prox`` with ``||prox - exact|| <= error`` in every batch entry, ``value = phi_lambda(x)`` and its gradient."""

    prox: Tensor
    value: Tensor
    gradient: Tensor
    error: float


def moreau(x: Tensor, X: Tensor, rho_bar: float, tolerance: float = TOLERANCE) -> Envelope:
    """``phi_lambda(x) = min_y {L(y) + 1/(2 lambda) ||y - x||^2}``, lambda = 1/rho-bar, for a batch x (..., m, d).

    Gradient descent from y = x with step 1/(12 Gamma + rho-bar). On the sublevel set of F at y, ``||.||_2^2 <= Gamma = lambda_1 +
    sqrt(F(y))``, where F's Hessian is at most 12 Gamma + rho-bar, so every step descends and stays inside. It stops when
    ``||grad F|| <= tolerance (rho-bar - rho)``, so that ``||y - prox|| <= tolerance``.

    ``grad phi_lambda(x) = (x - prox) / lambda``.
    """
    rho = weak_convexity(X)
    if not rho_bar > rho:
        raise ValueError(
            f"rho-bar must exceed rho = 4 lambda_max(X) = {rho:g}, or the proximal map is not unique; got {rho_bar:g}"
        )
    y, limit, constant = x.clone(), tolerance * (rho_bar - rho), X.square().sum()
    residual = float("inf")
    for _ in range(MAX_ITERATIONS):
        gram, yX, gap = y @ y.mT, y @ X, y - x
        slope = 4 * (gram @ y - yX) + rho_bar * gap
        residual = float(slope.flatten(-2).norm(dim=-1).max())
        if residual <= limit:
            break
        L = constant - 2 * (yX * y).sum((-2, -1)) + gram.square().sum((-2, -1))
        F = L.clamp(min=0) + rho_bar / 2 * gap.square().sum((-2, -1))
        y = y - slope / (12 * (rho / 4 + F.sqrt()) + rho_bar)[..., None, None]
    else:
        raise ValueError(f"the proximal map was not solved to {tolerance:g} (residual {residual:.1e}); raise rho-bar")
    gap = y - x
    value = objective(y, X) + rho_bar / 2 * gap.square().sum((-2, -1))
    return Envelope(y, value, -rho_bar * gap, residual / (rho_bar - rho))


@dataclass(frozen=True)
class Smoothness:
    """Largest ``||grad L(w) - grad L(w')|| / ||w - w'||`` found in the region, against its bound ``16 Gamma``."""

    gamma: float
    largest: float
    bound: float
    holds: bool


def check_smoothness(X: Tensor, m: int, gamma: float, generator: torch.Generator, pairs: int = 200) -> Smoothness:
    """App. A.3: for Gamma >= lambda_1(X), L is 16 Gamma-smooth on ``{||w||_2^2 <= Gamma}``.

    Tried where it is hardest: pairs of random points on the region's boundary, near and far, and the Hessian's largest
    eigenvalue (power iteration) at a boundary point along the eigenvector of the smallest eigenvalue of X.
    """
    values, vectors = eigen(X)
    if gamma < float(values[0]) * (1 - 1e-12):
        raise ValueError(f"Gamma must be at least lambda_1 = {float(values[0]):g}, not {gamma:g}")
    d = X.shape[-1]

    def boundary(count: int) -> Tensor:
        w = torch.randn(count, m, d, dtype=torch.float64, generator=generator)
        norms: Tensor = torch.linalg.matrix_norm(w, 2)
        edge: Tensor = w * (gamma**0.5 / norms)[:, None, None]
        return edge

    a, far = boundary(pairs), boundary(pairs)
    ratios = []
    for share in (1.0, 0.1, 1e-3):
        b = a + share * (far - a)  # the region is convex
        gap = (a - b).flatten(1).norm(dim=1)
        ratios.append(float(((gradient(a, X) - gradient(b, X)).flatten(1).norm(dim=1) / gap).max()))
    w = torch.zeros(m, d, dtype=torch.float64)
    w[0] = gamma**0.5 * vectors[:, -1]
    v = torch.randn(m, d, dtype=torch.float64, generator=generator)
    for _ in range(100):
        v = (
            hessian_product(w, X, v / v.norm()) + 4 * gamma * v / v.norm()
        )  # shifted: the largest, not the most negative
    ratios.append(float(v.norm()) - 4 * gamma)
    largest = max(ratios)
    return Smoothness(gamma, largest, 16 * gamma, largest <= 16 * gamma)
