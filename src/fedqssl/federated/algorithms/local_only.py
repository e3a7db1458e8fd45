"""Control: no federation. The gain of ``fed_qssl`` over it is the benefit of federation.

Every client trains its own model for all rounds and never sees another's. There is no aggregated model: global accuracy is the
mean over the clients' models.
"""

from __future__ import annotations

from fedqssl.config import RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators, ServerState
from fedqssl.federated.algorithms.work import RoundWork


def local_only(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
    """Every client keeps its own model."""
    return state, Round(None, payloads=arrived.payloads)


def _work(config: RunConfig, participants: int) -> RoundWork:
    return RoundWork(participants, traffic=False, hands_out=False, averages=False)


LOCAL_ONLY = Algorithm(
    "local_only",
    "control: local only",
    "control: every client alone, no federation",
    local_only,
    federates=False,
    work=_work,
    control=True,
)
