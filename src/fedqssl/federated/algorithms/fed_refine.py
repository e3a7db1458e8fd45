"""Fed-Refine: the server trains the average. Alternate training, as in SemiFL (Diao, Ding, Tarokh, NeurIPS 2022), without labels.

Fed-QSSL's server spends its steps on every received model and then averages. Here it averages first, by shares of images, and
spends all of them on the one model, so that they follow each other:

    w = sum_k |D_k|/|D| w_k,    w <- w - lr grad L(w; D_g)   (``server.steps`` times),    w^s = Q_s(w) for each bitwidth s

``Q_s`` rounds to nearest, without fine-tuning. The server needs the uploads' weighted sum only. A server optimiser
(``server.optimizer``) steps between the first and the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.fed_avg import plain_average
from fedqssl.federated.algorithms.work import RoundWork, on_one_model
from fedqssl.federated.state import State


def on_the_buffer(arrived: Arrived, operators: ServerOperators) -> Callable[[State], tuple[State, float]] | None:
    """Training of one model on the buffer, as long as Fed-QSSL's server trains all models together; None without steps."""
    steps = operators.server_steps(len(arrived.payloads))

    def refine(w: State) -> tuple[State, float]:
        return operators.train(w, "buffer", steps=steps)

    return refine if steps else None


def fed_refine(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Average, train the average on the buffer, round to bits."""
    state, found = plain_average(state, arrived, operators)
    return state, replace(found, refine=on_the_buffer(arrived, operators))


def _work(config: RunConfig, participants: int) -> RoundWork:
    return on_one_model(config, RoundWork(participants))


FED_REFINE = Algorithm(
    "fed_refine",
    "Fed-Refine",
    "average by number of images, train the average on the buffer, round to bits",
    fed_refine,
    work=_work,
    needs_sums_only=True,
)
