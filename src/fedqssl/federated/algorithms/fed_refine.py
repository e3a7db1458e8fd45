"""Fed-Refine: the server trains the average. Alternate training, as in SemiFL (Diao, Ding, Tarokh, NeurIPS 2022), without labels.

Fed-QSSL's server spends its steps on every received model and then averages. Here it averages first, by shares of images, and
spends all of them on the one model, so that they follow each other:

    w = sum_k |D_k|/|D| w_k,    w <- w - lr grad L(w; D_g)   (``server.steps`` times),    w^s = Q_s(w) for each bitwidth s

``Q_s`` rounds to nearest, without fine-tuning. The server needs the uploads' weighted sum only. A server optimiser
(``server.optimizer``) steps between the first and the second.
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork, on_one_model
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.state import State


def fed_refine(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Average, train the average on the buffer as long as Fed-QSSL's server trains all models together, round to bits."""
    weights = arrived.shares()
    states = operators.read(arrived.payloads)
    steps = operators.server_steps(len(arrived.payloads))

    def refine(w: State) -> tuple[State, float]:
        return operators.train(w, "buffer", steps=steps)

    return state, Round(
        average(states, weights),
        operators.round_to_bits,
        weights=weights,
        parts=states,
        refine=refine if steps else None,
    )


def _work(config: RunConfig, participants: int) -> RoundWork:
    return on_one_model(config, RoundWork(participants))


FED_REFINE = Algorithm(
    "fed_refine",
    "Fed-Refine",
    "average by number of images, train the average on the buffer, round to bits",
    fed_refine,
    work=_work,
)
