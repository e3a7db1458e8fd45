"""What an upload says about the kind of a client's images: the statistics of its batch norms under the initial model.

Batch norm measures its inputs while a client trains, and its statistics travel in floats, whatever the client's bits. With a
channel's running variance r as it arrives, r_0 as it was received, n steps and batch norm's momentum a,

    v = (r - (1 - a)^n r_0) / (1 - (1 - a)^n)    what the client measured, without what is left of r_0
    s_k = log sqrt(v)                            over all channels of all batch norms, heads included

A distance has no unit: it counts factors between standard deviations. Means and weights say less about kinds: means follow
colours and classes, and stochastic rounding to few bits adds more to the weights than the kind does (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor, nn

from fedqssl.federated.state import State
from fedqssl.federated.task import Task
from fedqssl.lowbit.policy import is_variance

SMALLEST = 1e-6
"""Of a variance: channels that are always 0 are alike."""
ITERATIONS = 100


def momentum_of(task: Task) -> float | None:
    """The momentum of a task's batch norms (their mean); None without any."""
    norms = [m for m in task.network().modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    found = [m.momentum for m in norms if m.running_var is not None and m.momentum is not None]
    return fmean(found) if found else None


def signature(received: State, model: State, steps: int, momentum: float) -> Tensor:
    """``s_k`` (channels,) in float64."""
    kept = (1 - momentum) ** max(steps, 1)
    names = sorted(filter(is_variance, model))
    r, r_0 = (torch.cat([of[name].double().flatten() for name in names]) for of in (model, received))
    v = (r - kept * r_0) / (1 - kept)
    return 0.5 * v.clamp(min=SMALLEST).log()


def distances(s: Tensor, centres: Mapping[int, Tensor]) -> dict[int, float]:
    """From a signature to every centre."""
    return {c: float((s - m).norm()) for c, m in sorted(centres.items())}


def nearest(s: Tensor, centres: Mapping[int, Tensor]) -> int:
    """The nearest centre; the first of equals."""
    found = distances(s, centres)
    return min(found, key=found.__getitem__)


def mean_of(signatures: Mapping[str, Tensor], of: Mapping[str, int], cluster: int) -> Tensor:
    """The mean signature of a cluster, summed in the order of names."""
    return torch.stack([s for n, s in sorted(signatures.items()) if of[n] == cluster]).mean(0)


def k_means(signatures: Mapping[str, Tensor], count: int) -> dict[str, int]:
    """At most ``count`` clusters of signatures, numbered by the first name in each; nothing is drawn.

    The first centres are the two signatures that are farthest apart (for one cluster: the first), then always the one that is
    farthest from those chosen. Equal signatures may leave clusters empty.
    """
    names = sorted(signatures)
    chosen = [max(names, key=lambda n: max(float((signatures[n] - s).norm()) for s in signatures.values()))]
    while len(chosen) < count:
        chosen.append(max(names, key=lambda n: min(float((signatures[n] - signatures[m]).norm()) for m in chosen)))
    centres, of = {c: signatures[n] for c, n in enumerate(chosen)}, dict[str, int]()
    for _ in range(ITERATIONS):
        before, of = of, {n: nearest(signatures[n], centres) for n in names}
        if of == before:
            break
        centres = {c: mean_of(signatures, of, c) for c in sorted(set(of.values()))}
    order = {c: i for i, c in enumerate(dict.fromkeys(of[n] for n in names))}
    return {n: order[c] for n, c in of.items()}


__all__ = ["distances", "k_means", "mean_of", "momentum_of", "nearest", "signature"]
