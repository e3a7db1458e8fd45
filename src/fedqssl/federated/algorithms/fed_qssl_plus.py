"""Fed-QSSL+: Fed-QSSL (Chen, Vikalo, Wang) whose steps follow each other. ``docs/method.md`` has the reasons and an ablation.

Fed-QSSL trains all clients at the same time and then every received model on the buffer, before it averages: most steps are taken
side by side. Here clients take turns in small groups S_t (``fraction``; Fed-Seq), the server keeps its model w in full precision
and adds to it what the group changed, and it spends its own steps on this one model (Fed-Refine):

    Q_k(w)  ->  w_k                                     local training in s_k bits, for k in S_t  (Algorithm 1, lines 3-9)
    w <- w + sum_{k in S_t} p_k (w_k - Q_k(w))          de-quantization and aggregation: p_k are shares of images
    w <- w - lr grad L(w; D_g)   (``server.steps`` times)
    Q_s(w) for each bitwidth s                          re-quantization, to nearest

The server needs the group's sum only, and its work does not depend on the number of clients.
"""

from __future__ import annotations

from dataclasses import replace

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.fed_refine import FED_REFINE, on_the_buffer
from fedqssl.federated.algorithms.fed_seq import fed_seq


def fed_qssl_plus(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Add the group's mean update to the server's model, train it on the buffer, round to bits."""
    state, found = fed_seq(state, arrived, operators)
    return state, replace(found, refine=on_the_buffer(arrived, operators))


FED_QSSL_PLUS = Algorithm(
    "fed_qssl_plus",
    "Fed-QSSL+",
    "clients take turns in small groups; the server adds their updates and trains the result",
    fed_qssl_plus,
    work=FED_REFINE.work,
    takes_turns=True,
    needs_sums_only=True,
)
