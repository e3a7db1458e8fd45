"""Server momentum (FedAvgM; Hsu, Qi, Brown 2019; Reddi et al., ICLR 2021), around the server part of any algorithm.

The aggregate is read as a step from the model before the round, ``d_t = w_agg - w_t``:

    m_(t+1) = beta m_t + d_t,    w_(t+1) = w_t + eta m_(t+1)

with ``beta = server.momentum`` and ``eta = server.optimizer_lr``. ``beta = 0, eta = 1`` is the algorithm itself. Statistics of
batch norm and ranges of activations are measured, not optimised: they are the aggregate's.
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Server
from fedqssl.federated.optimizers.pseudo_gradient import with_step
from fedqssl.federated.state import State

NAME = "momentum"


def with_momentum(server: Server, beta: float, lr: float) -> Server:
    """The server with momentum ``beta`` and step size ``lr``."""

    def step(moments: dict[str, State], d: State) -> tuple[dict[str, State], State]:
        before = moments.get("m", {})
        m = {name: beta * before[name] + x if name in before else x for name, x in d.items()}
        return {"m": m}, {name: lr * x for name, x in m.items()}

    return with_step(server, NAME, step)


__all__ = ["with_momentum"]
