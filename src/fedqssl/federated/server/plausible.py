"""What an upload may say: values that a client can have reached from the model that it received.

With r the received tensor of the same name, ``top(x) = max|x|`` and ``size(x) = max(top(x), 1)``:

    batch-norm variances      0 <= v <= VARIANCE size(r)
    batch-norm means          top(x) <= FACTOR max(size(r), sqrt(size(variances of r)))
    weights of layers         |r| / FACTOR <= |x| <= FACTOR |r|,    std(x) >= std(r) / FACTOR  (not all the same)
    gains                     |r| / FACTOR <= |x|,  top(x) <= FACTOR size(r)
    everything else           top(x) <= FACTOR size(r)
    everything                top(x) <= LARGEST, variances <= LARGEST^2: so that no number of rounds makes it overflow

The factors are far beyond what training does (``docs/security.md`` has what was seen): they keep one upload from ending a run or
from blinding the average, not a patient client from doing harm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedqssl.federated.state import State
from fedqssl.lowbit import ContainerError
from fedqssl.lowbit.policy import is_variance, is_weight

FACTOR = 100.0
VARIANCE = 10_000.0
LARGEST = 1e6
ROUNDED = 1e-4
"""Of a variance's size: how far below 0 the sum of a received variance and an update may be, which is rounded."""
CANCEL = 1e-3
"""Of the mean square: a variance below that is computed from the differences."""
MANY = 64
"""Weights of a layer that cannot all become the same by training."""


def check_values(received: State, found: State) -> None:
    """Raise ContainerError unless a client can have made the second state of the first."""
    for name, x in sorted(found.items()):
        r = received.get(name)
        if r is None or not x.numel():
            continue
        why = _variances(x, r) if is_variance(name) else _others(name, x, r, received)
        if why:
            raise ContainerError(f"'{name}' is not plausible: {why}")


def _variances(x: Tensor, r: Tensor) -> str | None:
    if float(x.min()) < -ROUNDED * top(r):
        return f"a variance of {float(x.min()):.3g}"
    return _bounded("a variance", x, min(VARIANCE * size(r), LARGEST**2))


def _others(name: str, x: Tensor, r: Tensor, received: State) -> str | None:
    if is_weight(x) or name.endswith(".weight"):
        if (why := _of_a_length(x, r)) is not None:
            return why
        if is_weight(x):
            return _bounded("a weight", x, LARGEST)
    limit = size(r)
    if name.endswith(".running_mean"):
        variances = received.get(name.removesuffix("mean") + "var")
        limit = limit if variances is None else max(limit, size(variances) ** 0.5)
    return _bounded("a value", x, min(FACTOR * limit, LARGEST))


def _of_a_length(x: Tensor, r: Tensor) -> str | None:
    """Whether weights have shrunk to nothing, grown beyond measure or become the same."""
    length, before = norm(x), norm(r)
    if before and not before / FACTOR <= length <= FACTOR * before:
        return f"of length {length:.3g}, received with {before:.3g}"
    if is_weight(x) and x.numel() >= MANY and spread(x, length) < spread(r, before) / FACTOR:
        return "all its weights are the same"
    return None


def _bounded(what: str, x: Tensor, limit: float) -> str | None:
    found = top(x)
    return None if found <= limit else f"{what} of {found:.3g}, more than {limit:.3g}"  # NaN is not


def top(x: Tensor) -> float:
    """``max|x|``, 0 of nothing."""
    if not x.numel():
        return 0.0
    low, high = torch.aminmax(x)
    return max(-float(low), float(high))


def size(x: Tensor) -> float:
    """``max(top(x), 1)``: what is zero before training may become something."""
    return max(top(x), 1.0)


def norm(x: Tensor) -> float:
    """The length, summed in float64."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def spread(x: Tensor, length: float | None = None) -> float:
    """The standard deviation: ``sqrt(|x|^2 / n - mean^2)``, or in float64 from the differences where these nearly cancel."""
    square = (norm(x) if length is None else length) ** 2 / x.numel()
    found = square - float(x.mean()) ** 2
    return math.sqrt(found) if found > CANCEL * square else float(x.double().std(correction=0))


__all__ = ["FACTOR", "LARGEST", "VARIANCE", "check_values", "spread", "top"]
