"""Error variances that Lemma 1 and Corollary 1 speak of, measured with the real quantizers on one layer.

Legend: w on-grid weights of a layer, g gradient with ||g|| = G, alpha step, R bits; all variances are E||eps||^2 / N per entry.

Steps are given relative to the layer: ``step`` is the root mean square of ``alpha g`` over the layer's largest weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedqssl.quant import IDENTITY, TANH, Compander
from fedqssl.studies.theory.quantizers import (
    Rounded,
    optimal_gaussian_compander,
    quantize_gradients,
    quantize_uniformly,
    quantize_weights,
)
from fedqssl.studies.theory.randomness import generator

ENTRIES = 1 << 14
DRAWS = 4
SIGMA = 0.5
"""Spread of the weights: wide enough for tanh to bend."""

SMALL_CELLS = 0.05
"""The small step in cells of 10 bits: 8e-4 cells at 4 bits, still above the snapping distance of 1e-4 cells."""

LARGE_SHARE = 0.3
"""The large step as a share of the largest weight: 2 cells at 4 bits, 150 at 10; the range itself hardly moves."""

Family = Literal["gauss", "laplace", "uniform"]
FAMILIES: tuple[Family, ...] = ("gauss", "laplace", "uniform")
Kind = Literal["uniform", "tanh", "optimal"]


COMPANDERS: dict[Kind, Compander] = {"uniform": IDENTITY, "tanh": TANH, "optimal": optimal_gaussian_compander(SIGMA)}


@dataclass(frozen=True)
class Layer:
    """How many entries to draw, how often, and from which seed."""

    seed: int
    entries: int = ENTRIES
    draws: int = DRAWS


def sample(family: Family, count: int, gen: torch.Generator) -> Tensor:
    """Unit-variance draws of a family."""
    if family == "gauss":
        return torch.randn(count, dtype=torch.float64, generator=gen)
    u = torch.rand(count, dtype=torch.float64, generator=gen) * 2 - 1
    if family == "uniform":
        return u * math.sqrt(3)
    return -u.sign() * torch.log1p(-u.abs()) / math.sqrt(2)


def mean_square(rounded: Rounded) -> float:
    """``||eps||^2 / N``."""
    return float(rounded.error.square().mean())


def _weights(bits: int, layer: Layer, gen: torch.Generator, compander: Compander = TANH) -> Rounded:
    """A layer's Gaussian weights on the grid of a compander."""
    return quantize_weights(SIGMA * sample("gauss", layer.entries, gen), bits, gen, compander=compander)


def companded(kind: Kind, bits: int, layer: Layer) -> list[Rounded]:
    """Quantization of off-grid Gaussian weights: uniform and optimal companding are the two references of the proof."""
    gen = generator(layer.seed, "off-grid", kind, bits)
    return [_weights(bits, layer, gen, COMPANDERS[kind]) for _ in range(layer.draws)]


def gradients(family: Family, bits: int, layer: Layer, size: float = 1.0) -> list[Rounded]:
    """Quantile quantization of gradients with root mean square ``size`` (G = size sqrt(N))."""
    gen = generator(layer.seed, "gradient", family, bits, size)
    return [quantize_gradients(size * sample(family, layer.entries, gen), bits, gen) for _ in range(layer.draws)]


def uniform_on(family: Family, bits: int, layer: Layer) -> list[Rounded]:
    """The proof's upper reference for gradients: a uniform quantizer over their range."""
    gen = generator(layer.seed, "uniform reference", family, bits)
    return [quantize_uniformly(sample(family, layer.entries, gen), bits, gen) for _ in range(layer.draws)]


def small_step(reference_bits: int = 10) -> float:
    """``alpha g`` (rms) that is 0.05 of the narrowest cell of 10 bits, per unit of the layer's largest tanh(w)."""
    return SMALL_CELLS * 2 / (math.pow(2, reference_bits) - 1)


def _client_step(w: Tensor, bits: int, alpha: float, size: float, gen: torch.Generator) -> Rounded:
    """``Q(w - alpha g^(Q))`` with Gaussian g of root mean square ``size``."""
    g = quantize_gradients(size * sample("gauss", w.numel(), gen), bits, gen).value
    return quantize_weights(w - alpha * g, bits, gen)


def weight_step(bits: int, alpha: float, size: float, layer: Layer) -> list[Rounded]:
    """eps_w of one local step from the grid: ``Q(w - alpha g^(Q))`` with Gaussian g of rms ``size``, m recomputed (the paper)."""
    gen = generator(layer.seed, "step", bits, alpha, size)
    return [_client_step(_weights(bits, layer, gen).value, bits, alpha, size, gen) for _ in range(layer.draws)]


def server_step(bits: int, alpha: float, size: float, layer: Layer, clients: int = 4) -> list[Rounded]:
    """eps_r of one round: clients step from the same grid point with gradients of their own, the server averages and rounds."""
    gen = generator(layer.seed, "server", bits, alpha, size)
    made = []
    for _ in range(layer.draws):
        w = _weights(bits, layer, gen).value
        total = torch.zeros_like(w)
        for _ in range(clients):
            total += _client_step(w, bits, alpha, size, gen).value
        made.append(quantize_weights(total / clients, bits, gen))
    return made
