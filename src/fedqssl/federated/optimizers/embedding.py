"""Uploads that see the buffer's images unlike all others are left out, after EmInspector (Qian et al., arXiv 2405.13080).

Every upload, in its own bits, embeds the same images of the buffer (``aggregation.robust = "embedding"``). With the embeddings
``Z_k`` (N, d) of client k, less their mean, similarities of images and of clients are (linear CKA, Kornblith et al., ICML 2019)

    S_k = Z_k Z_k^T,    s_kj = <S_k, S_j> / (|S_k| |S_j|),    0 if a model sees no difference between images
    a_k = median of s_kj over j != k

and client k stands apart if

    a_k < M - DEVIATIONS 1.4826 MAD    and    a_k < M SHARE,    M = median of all a_j,    MAD = median of |a_j - M|

EmInspector compares the models' embeddings of an image with each other; similarities of images need no common axes. The median
over j keeps two hostile clients of the same mind from vouching for each other. The share keeps honest clients with skewed data in
where all others happen to agree. Clients that stand apart are rejected by name, and the algorithm, whichever it is, sees the
others only. In rounds of fewer than three clients nobody is left out. A model that sees images as others do and is hostile
otherwise (a flipped update, for example) passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Server, ServerOperators, ServerState

NAME = "embedding"
IMAGES = 256
"""Of the buffer, at most: similarities are compared in pairs of images."""
DEVIATIONS = 2.0
SHARE = 1 / 3
"""A half left out an honest 8-bit client with skewed images in one of four rounds that it was tried on."""
LEAST = 3


def similarity(z: Tensor) -> Tensor:
    """``S_k / |S_k|`` (N, N) of embeddings (N, d); zeros if there is nothing to see."""
    centred = z.double() - z.double().mean(0)
    found = centred @ centred.T
    length = found.norm()
    known = bool(torch.isfinite(length)) and float(length) > 0
    return found / length if known else torch.zeros_like(found)


def agreements(embeddings: Mapping[str, Tensor]) -> dict[str, float]:
    """``a_k`` by client."""
    s = {n: similarity(z[:IMAGES]) for n, z in sorted(embeddings.items())}
    return {n: median(float((s[n] * s[j]).sum()) for j in s if j != n) for n in s}


def apart(a: Mapping[str, float]) -> dict[str, str]:
    """Why clients are left out, by name."""
    if len(a) < LEAST:
        return {}
    middle = median(a.values())
    deviation = 1.4826 * median(abs(x - middle) for x in a.values())
    limit = min(middle - DEVIATIONS * deviation, SHARE * middle)
    return {
        n: f"its model sees the buffer's images unlike the others: {x:.2f} alike, {middle:.2f} is usual"
        for n, x in sorted(a.items())
        if x < limit
    }


def with_embedding_check(algorithm: Algorithm) -> Server:
    """The algorithm's server part without the uploads that stand apart."""

    def checked(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        out = {}
        if len(arrived.payloads) >= LEAST:
            out = apart(agreements(operators.embed(arrived.payloads)))
        rest = {n: payload for n, payload in arrived.payloads.items() if n not in out}
        state, found = algorithm.server(state, replace(arrived, payloads=rest), operators)
        return state, replace(found, rejected={**found.rejected, **out})

    return checked


__all__ = ["agreements", "apart", "similarity", "with_embedding_check"]
