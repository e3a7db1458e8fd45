"""Quantized FedAvg on the linear model, as Sec. 4 simplifies Algorithm 1.

Legend: w_k^(Q) a client's parameters, g_k its gradient, alpha_t step, E local steps, R bits, p_k = |D_k|/|D|.

* client, E times: ``g^(Q) = Quantile_R(g_k(w))``, ``w <- Q_R(w - alpha_t g^(Q))``       (errors eps_g, eps_w)
* server: codebook mapping ``w'_k = w_k^(Q)``, ``w_G = sum_k p_k w'_k``, then re-quantized with the tanh quantizer (eps_r)

All rounding is stochastic and unbiased (Assumption 1), with the quantizers of ``fedqssl.quant``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedqssl.quant import Rounding
from fedqssl.studies.theory.model import gradient
from fedqssl.studies.theory.quantizers import FULL, Rounded, quantize_gradients, quantize_weights

StepKind = Literal["constant", "sqrt"]
DIVERGED = 1e6


@dataclass(frozen=True)
class Steps:
    """Step sizes: ``alpha_t = base`` or ``base / sqrt(t + 1)``; the same for all E local steps of round t."""

    base: float
    kind: StepKind = "constant"

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise ValueError(f"the step size alpha must be positive, not {self.base}")

    def alpha(self, t: int) -> float:
        """``alpha_{tE}``."""
        return self.base if self.kind == "constant" else self.base / math.sqrt(t + 1)


@dataclass(frozen=True)
class TheoryPrecision:
    """Bits of every client (one value, or one per client; 32 is full precision) and how to round.

    ``scale`` None recomputes ``m = max|c(w)|`` at every quantization (the paper; nothing is ever clipped, so Assumption 1
    holds exactly); a number keeps one grid for the whole run.
    """

    bits: int | tuple[int, ...]
    rounding: Rounding = "stochastic"
    scale: float | None = None

    def per_client(self, n: int) -> tuple[int, ...]:
        """One bitwidth per client."""
        bits = (self.bits,) * n if isinstance(self.bits, int) else self.bits
        if len(bits) != n:
            raise ValueError(f"{len(bits)} bitwidths for {n} clients; give one, or one each")
        if any(b != FULL and not 1 <= b <= 16 for b in bits):
            raise ValueError(f"bits R must be whole numbers from 1 to 16, or 32 for full precision; not {bits}")
        return bits


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The course of a run.

    ``iterates`` (T + 1, m, d) holds ``w^(Q)_{tE,G} = sum_k p_k w^(Q)_{k,tE}`` for t = 0..T, ``alphas`` (T,) the steps.
    ``G`` is the largest norm of any (quantized) local gradient; ``Gq2`` the largest ``E_t||eps||^2 / alpha_t`` of eps_w and
    eps_r, with E_t in closed form.
    """

    iterates: Tensor
    alphas: Tensor
    G: float
    Gq2: float
    Gq2_weights: float
    Gq2_server: float
    largest_norm2: float

    @property
    def final(self) -> Tensor:
        """The last global model."""
        return self.iterates[-1]


class _Meter:
    """Largest values seen so far."""

    def __init__(self) -> None:
        self.G, self.weights, self.server, self.norm2 = 0.0, 0.0, 0.0, 0.0

    def gradient(self, g: Rounded) -> None:
        self.G = max(self.G, float(g.x.norm()), float(g.value.norm()))

    @staticmethod
    def expected(q: Rounded, rounding: Rounding) -> float:
        return float(q.variance.sum() if rounding == "stochastic" else q.error.square().sum())


def _local(
    w: Tensor,
    X: Tensor,
    alpha: float,
    bits: int,
    local_steps: int,
    p: TheoryPrecision,
    meter: _Meter,
    gen: torch.Generator,
) -> Tensor:
    """E quantized gradient steps of one client."""
    for _ in range(local_steps):
        g = quantize_gradients(gradient(w, X), bits, gen, p.rounding)
        q = quantize_weights(w - alpha * g.value, bits, gen, p.rounding, scale=p.scale)
        meter.gradient(g)
        if bits != FULL:
            meter.weights = max(meter.weights, meter.expected(q, p.rounding) / alpha)
        w = q.value
    return w


def run_fedavg(
    w0: Tensor,
    X: Sequence[Tensor],
    steps: Steps,
    rounds: int,
    precision: TheoryPrecision,
    generator: torch.Generator,
    weights: Tensor | None = None,
    local_steps: int = 1,
) -> Trajectory:
    """Run T rounds from ``w0`` (quantized first) on clients with covariances ``X``; ``weights`` p_k default to 1/n."""
    n = len(X)
    if rounds < 1 or local_steps < 1:
        raise ValueError("rounds and local steps must be at least 1")
    p = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else weights.double() / weights.sum()
    bits = precision.per_client(n)
    meter = _Meter()

    def send(w: Tensor, alpha: float | None) -> list[Tensor]:
        """Re-quantize for every bitwidth: one draw per bitwidth, as the server sends one model per bitwidth."""
        made = {}
        for b in sorted(set(bits)):
            q = quantize_weights(w, b, generator, precision.rounding, scale=precision.scale)
            made[b] = q.value
            if alpha is not None and b != FULL:
                meter.server = max(meter.server, meter.expected(q, precision.rounding) / alpha)
        return [made[b] for b in bits]

    def mean(models: Sequence[Tensor]) -> Tensor:
        return torch.einsum("k,kij->ij", p, torch.stack(list(models)))

    models = send(w0.double(), None)
    iterates, alphas = [mean(models)], []
    for t in range(rounds):
        alpha = steps.alpha(t)
        local = [
            _local(w, Xk, alpha, b, local_steps, precision, meter, generator)
            for w, Xk, b in zip(models, X, bits, strict=True)
        ]
        models = send(mean(local), alpha)
        iterates.append(mean(models))
        alphas.append(alpha)
        meter.norm2 = max(meter.norm2, float(torch.linalg.matrix_norm(iterates[-1], 2)) ** 2)
        if not meter.norm2 < DIVERGED:
            raise ValueError(
                f"the run diverged in round {t + 1} (||w||^2 > {DIVERGED:g}); use a smaller step or more bits"
            )
    largest = meter.G, max(meter.weights, meter.server), meter.weights, meter.server, meter.norm2
    return Trajectory(torch.stack(iterates), torch.tensor(alphas, dtype=torch.float64), *largest)


def initial_weights(m: int, d: int, generator: torch.Generator, size: float = 0.1) -> Tensor:
    """A Gaussian start with standard deviation ``size``."""
    return size * torch.randn(m, d, dtype=torch.float64, generator=generator)
