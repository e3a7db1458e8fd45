"""What hostile clients send: each attack is a function from what the attacker knows to the model that it sends.

``r`` is the model that the attacker received, ``w`` the one that honest training would give, ``u = w - r`` its honest update and
``u_j`` the updates of the honest clients, which the attacker is taken to know (the strongest case). Where an attack does not
speak of what is measured (batch-norm statistics, activation ranges), the model sent has the honest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedqssl.federated.server.plausible import FACTOR, VARIANCE, size
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic, is_variance, is_weight
from fedqssl.studies.attacks.backdoor import Own, backdoored

TIMES = 10.0
Z = 1.5
BEYOND = 1.1
CLAIMED = 10_000_000
NEARLY = 0.9
"""Of the limits of plausibility, so that rounding does not cross them."""


@dataclass(frozen=True, eq=False)
class Known:
    """What an attacker knows in a round.

    Args:
        received: ``r``, the model that it received, as floats.
        trained: ``w``, the model that its honest training gave.
        honest: ``u_j`` of the honest clients by name, without what is measured.
        malicious: how many clients attack together.
        draws: its randomness.
        own: what it needs to train a backdoor.
    """

    received: State
    trained: State
    honest: Mapping[str, State]
    malicious: int
    draws: torch.Generator
    own: Own | None = None


def moved(known: Known, change: Callable[[str, Tensor], Tensor]) -> State:
    """``r + change(name, u)`` of everything that is trained, with honest statistics."""
    r = known.received
    return {n: x if is_statistic(n) or n not in r else r[n] + change(n, x - r[n]) for n, x in known.trained.items()}


def none(known: Known) -> State:
    """``w``: an honest client."""
    return known.trained


def sign_flip(known: Known) -> State:
    """``r - u``: the update in the opposite direction (Li et al., RSA, AAAI 2019)."""
    return moved(known, lambda name, u: -u)


def times_ten(known: Known) -> State:
    """``r + 10 u``: the update ten times as long, as in model replacement (Bagdasaryan et al., AISTATS 2020)."""
    return moved(known, lambda name, u: TIMES * u)


def noise(known: Known) -> State:
    """``r_t + N(0, std(r_t)^2)`` of every tensor t: Gaussian noise (Blanchard et al., NeurIPS 2017) as large as the model."""

    def drawn(name: str, u: Tensor) -> Tensor:
        return torch.randn(u.shape, generator=known.draws) * known.received[name].std(correction=0)

    return moved(known, drawn)


def constant(known: Known) -> State:
    """``max|w_t|`` in every entry of every layer's weights, all codes the same: only the sum of the inputs passes."""
    return {n: torch.full_like(x, float(x.abs().max())) if is_weight(x) else x for n, x in known.trained.items()}


def collapse(known: Known) -> State:
    """Every row of a layer's weights is its first row: all units say the same, and features have one dimension.

    The extreme of dimensional collapse (Jing et al., ICLR 2022); lengths and deviations stay plausible.
    """
    return {n: x[:1].expand_as(x).contiguous() if is_weight(x) else x for n, x in known.trained.items()}


def huge_statistics(known: Known) -> State:
    """Batch-norm variances and means nearly as large as ``federated/server/plausible.py`` lets pass, with honest weights.

    ``v = 0.9 VARIANCE max(v_r, 1)`` and ``mu = 0.9 FACTOR max(|mu_r|, 1)``, the largest of the layer: outputs become biases.
    """

    def false(name: str, x: Tensor) -> Tensor:
        r = known.received[name]
        factor = VARIANCE if is_variance(name) else FACTOR
        return torch.full_like(x, NEARLY * factor * size(r))

    said = (".running_var", ".running_mean")
    return {n: false(n, x) if n.endswith(said) and n in known.received else x for n, x in known.trained.items()}


def negative_statistics(known: Known) -> State:
    """Batch-norm variances of -1000: the square root of the aggregate's is not a number."""
    return {n: torch.full_like(x, -1000.0) if is_variance(n) else x for n, x in known.trained.items()}


def alie(known: Known) -> State:
    """``r + mean_j(u_j) - z std_j(u_j)`` of every entry (Baruch et al., A little is enough, NeurIPS 2019), z = 1.5.

    Within the spread of the honest clients. Their bound ``z_max`` for 2 attackers of 10 clients is 0, which would be no attack.
    """

    def shifted(name: str, u: Tensor) -> Tensor:
        every = _every(known, name)
        return u if every is None else every.mean(0) - Z * every.std(0, correction=0)

    return moved(known, shifted)


def ipm(known: Known) -> State:
    """``r - e mean_j(u_j)``: inner product manipulation (Xie et al., Fall of empires, UAI 2020).

    ``e = 1.1 (n - m) / m`` with m attackers of n clients: just enough to turn the sum of all updates around.
    """
    e = BEYOND * len(known.honest) / known.malicious

    def turned(name: str, u: Tensor) -> Tensor:
        every = _every(known, name)
        return -u if every is None else -e * every.mean(0)

    return moved(known, turned)


def backdoor(known: Known) -> State:
    """``r + (n / m) u`` with the update u of a model that has learned a trigger (``backdoor.py``)."""
    if known.own is None:
        raise ValueError("a backdoor needs images to train on")
    made = backdoored(known.received, known.own, known.draws)
    boost = (len(known.honest) + known.malicious) / known.malicious
    return moved(known, lambda name, u: boost * (made[name] - known.received[name]) if name in made else u)


def _every(known: Known, name: str) -> Tensor | None:
    """``u_j`` of one tensor, (J, ...); None if no honest client has it."""
    found = [known.honest[n][name] for n in sorted(known.honest) if name in known.honest[n]]
    return torch.stack(found) if found else None


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        name: in cells and on the command line.
        title: in tables.
        model: from what the attacker knows to the model that it sends.
        samples: how many images it claims to have; None for the truth.
    """

    name: str
    title: str
    model: Callable[[Known], State]
    samples: int | None = None


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("none", "none", none),
        Attack("sign_flip", "sign flip", sign_flip),
        Attack("times_ten", "x10", times_ten),
        Attack("noise", "noise", noise),
        Attack("constant", "constant", constant),
        Attack("collapse", "collapse", collapse),
        Attack("huge_statistics", "huge statistics", huge_statistics),
        Attack("negative_statistics", "negative statistics", negative_statistics),
        Attack("false_count", "false count", none, CLAIMED),
        Attack("alie", "ALIE", alie),
        Attack("ipm", "IPM", ipm),
        Attack("backdoor", "backdoor", backdoor),
    )
}
"""By name; ``none`` is the run that the others are compared with. ``false_count`` claims ten million images."""

__all__ = ["ATTACKS", "Attack", "Known", "none"]
