"""FedAdam (Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithm 2), around the server part of any algorithm.

The aggregate is read as a step from the model before the round, ``d_t = w_agg - w_t``:

    m_(t+1) = beta1 m_t + (1 - beta1) d_t
    v_(t+1) = beta2 v_t + (1 - beta2) d_t^2,   v_0 = tau^2
    w_(t+1) = w_t + eta m_(t+1) / (sqrt(v_(t+1)) + tau)

with ``beta1 = server.momentum``, ``eta = server.optimizer_lr``, beta2 = 0.99, tau = 0.001 and no bias correction, as there.
Statistics of batch norm and ranges of activations are measured, not optimised: they are the aggregate's.
"""

from __future__ import annotations

import torch

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.pseudo_gradient import with_step
from fedqssl.federated.state import State

NAME = "adam"
BETA2 = 0.99
TAU = 1e-3


def with_adam(server: Server, beta1: float, lr: float, beta2: float = BETA2, tau: float = TAU) -> Server:
    """The server with Adam's moments ``beta1`` and ``beta2``, step size ``lr`` and adaptivity ``tau``."""

    def step(moments: dict[str, State], d: State) -> tuple[dict[str, State], State]:
        m_before, v_before = moments.get("m", {}), moments.get("v", {})
        m, v = {}, {}
        for name, x in d.items():
            m[name] = beta1 * m_before.get(name, torch.zeros_like(x)) + (1 - beta1) * x
            v[name] = beta2 * v_before.get(name, torch.full_like(x, tau**2)) + (1 - beta2) * x * x
        return {"m": m, "v": v}, {name: lr * m[name] / (v[name].sqrt() + tau) for name in d}

    return with_step(server, NAME, step)


__all__ = ["with_adam"]
