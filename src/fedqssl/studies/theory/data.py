"""The heterogeneous data of App. A.4: n sources, 2n classes, client k mostly sees classes 2k-1 and 2k.

Legend: e_i unit vectors of R^d, tau = d^(1/5), mu = d^(-1/5), q in {0, 1} uniform, xi ~ N(0, I). For i, j, k in [n]:

* class 2k-1 at client k: ``x =  e_k - sum_{i != k} q_i tau e_i + mu xi``
* class 2k   at client k: ``x = -e_k - sum_{i != k} q_i tau e_i + mu xi``
* class 2i-1, i != k (few): ``x = e_i + mu xi``; class 2i, i != k: none

The paper asks for n = Theta(d^(1/20)) and for minority counts d^beta with n d^beta <= d^(1/5). With d = 32 that allows less than
one sample per class, so n, d and the counts are free here: the asymptotic regime is not reached, and we say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.studies.theory.model import covariance


@dataclass(frozen=True)
class Sources:
    """Sizes of the construction; ``majority`` counts samples per majority class, ``minority`` per other class."""

    dim: int
    clients: int
    majority: int = 500
    minority: int = 1

    def __post_init__(self) -> None:
        if self.clients < 2:
            raise ValueError(f"the data of App. A.4 need at least 2 clients, not {self.clients}")
        if self.clients > self.dim:
            raise ValueError(f"clients n = {self.clients} must not exceed the dimension d = {self.dim}; raise --dim")
        if self.majority < 1 or self.minority < 0:
            raise ValueError("majority must be at least 1 and minority at least 0")

    @property
    def tau(self) -> float:
        """``tau = d^(1/5)``."""
        return math.pow(self.dim, 0.2)

    @property
    def mu(self) -> float:
        """``mu = d^(-1/5)``."""
        return math.pow(self.dim, -0.2)

    @property
    def samples(self) -> int:
        """``|D_k|``, the same for all clients."""
        return 2 * self.majority + (self.clients - 1) * self.minority


@dataclass(frozen=True, eq=False)
class TheoryData:
    """Samples (N, d) of one client with their classes 0..2n-1 (class c of the code is class c+1 of the paper)."""

    x: Tensor
    labels: Tensor

    @property
    def covariance(self) -> Tensor:
        """``X_k``."""
        return covariance(self.x)


def _majority(sources: Sources, k: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` samples of each of the two majority classes of source k (0-based)."""
    n, d = sources.clients, sources.dim
    x = torch.zeros(2 * count, d, dtype=torch.float64)
    q = torch.randint(0, 2, (2 * count, n), generator=generator).double()
    x[:, :n] = -sources.tau * q
    x[:count, k], x[count:, k] = 1.0, -1.0
    x += sources.mu * torch.randn(x.shape, dtype=torch.float64, generator=generator)
    return x, torch.tensor([2 * k] * count + [2 * k + 1] * count)


def client_data(sources: Sources, k: int, generator: torch.Generator) -> TheoryData:
    """The data set of client k (0-based) as App. A.4 builds it."""
    x, labels = _majority(sources, k, sources.majority, generator)
    others = torch.tensor([i for i in range(sources.clients) if i != k]).repeat_interleave(sources.minority)
    few = torch.eye(sources.dim, dtype=torch.float64)[others]
    few = few + sources.mu * torch.randn(few.shape, dtype=torch.float64, generator=generator)
    return TheoryData(torch.cat([x, few]), torch.cat([labels, 2 * others]))


def blended_data(sources: Sources, k: int, own: float, generator: torch.Generator) -> TheoryData:
    """Client k with a share ``own`` of source k and the rest split evenly over the other sources' majority classes.

    ``own = 1/n`` is the same mixture at every client; ``own = 1`` is :func:`client_data`, minority samples included.
    """
    if not 0 <= own <= 1:
        raise ValueError(f"own is a share and must lie in 0..1, not {own}")
    if own == 1:
        return client_data(sources, k, generator)
    rest = (1 - own) / (sources.clients - 1)
    shares = [own if i == k else rest for i in range(sources.clients)]
    parts = [_majority(sources, i, round(s * sources.majority), generator) for i, s in enumerate(shares)]
    return TheoryData(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))


def expected_covariance(sources: Sources, k: int) -> Tensor:
    """``E[X_k]``, exactly.

    With a = share of majority samples and b = share of one minority class,

    * (i, i): ``a tau^2/2 + b + mu^2`` for i in [n], i != k; ``a + mu^2`` for i = k; ``mu^2`` beyond n
    * (i, j): ``a tau^2/4`` for i != j in [n], both != k; 0 otherwise (classes 2k-1 and 2k cancel in row k)

    ``E[q] = E[q^2] = 1/2`` gives the diagonal, and ``E[q_i q_j] = 1/4`` the off-diagonal that the paper leaves out.
    """
    n, d = sources.clients, sources.dim
    a, b = 2 * sources.majority / sources.samples, sources.minority / sources.samples
    X = torch.zeros(d, d, dtype=torch.float64)
    X[:n, :n] = a * sources.tau**2 / 4
    X[k, :], X[:, k] = 0.0, 0.0
    diagonal = torch.zeros(d, dtype=torch.float64)
    diagonal[:n] = a * sources.tau**2 / 2 + b
    diagonal[k] = a
    X[range(d), range(d)] = diagonal + sources.mu**2
    return X


def printed_covariance(sources: Sources, k: int) -> Tensor:
    """``E[X_k]`` as printed: ``diag(tau^2, ..., 1 at k, ..., tau^2, 0, ..., 0)``, each with O(d^(-2/5)) taken as mu^2."""
    diagonal = torch.zeros(sources.dim, dtype=torch.float64)
    diagonal[: sources.clients] = sources.tau**2
    diagonal[k] = 1.0
    return torch.diag(diagonal + sources.mu**2)
