"""Fed-Seq: small groups of clients one after the other, as in sequential federated learning (Li, Lyu, NeurIPS 2023).

Averaging many clients that train at the same time turns the steps of all of them into the depth of one. Here clients take turns
in groups S_t (``fraction`` of them), and every group starts where the one before it arrived, so that with the same work of each
client the steps that follow each other are ``1 / fraction`` times as many:

    w <- w + sum_{k in S_t} p_k (w_k - Q_k(w)),    p_k = |D_k| / sum_{j in S_t} |D_j|

``w`` is the server's model in full precision, ``Q_k(w)`` what client k received in its bits, ``w_k`` what it sent back. Adding
what clients changed, instead of adopting their models, keeps the precision that a group of few bits would lose for all that come
after it. The server needs the sum over the group only. Models are handed out rounded to nearest.
"""

from __future__ import annotations

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.server.aggregate import average, with_updates


def fed_seq(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Add the group's mean update to the server's model, round to bits."""
    weights = arrived.shares()
    sent = {name: arrived.sent[name] for name in arrived.payloads}
    parts = with_updates(operators.before(), operators.read(sent), operators.read(arrived.payloads))
    return state, Round(average(parts, weights), operators.round_to_bits, weights=weights, parts=parts)


FED_SEQ = Algorithm(
    "fed_seq",
    "Fed-Seq",
    "clients take turns in small groups (fraction), each starting where the last one arrived",
    fed_seq,
    takes_turns=True,
    needs_sums_only=True,
)
