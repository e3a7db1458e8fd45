"""Federated algorithms by name, one file each; see :class:`fedqssl.federated.algorithms.base.Algorithm`."""

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators
from fedqssl.federated.algorithms.central import CENTRAL
from fedqssl.federated.algorithms.fed_avg import FED_AVG
from fedqssl.federated.algorithms.fed_paq import FED_PAQ
from fedqssl.federated.algorithms.fed_prox import FED_PROX
from fedqssl.federated.algorithms.fed_qssl import FED_QSSL
from fedqssl.federated.algorithms.fed_simclr import FED_SIMCLR
from fedqssl.federated.algorithms.fed_simsiam import FED_SIMSIAM
from fedqssl.federated.algorithms.local_only import LOCAL_ONLY
from fedqssl.federated.algorithms.server_only import SERVER_ONLY
from fedqssl.federated.algorithms.untrained import UNTRAINED

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (
        FED_QSSL,
        FED_SIMCLR,
        FED_SIMSIAM,
        FED_AVG,
        FED_PROX,
        FED_PAQ,
        LOCAL_ONLY,
        SERVER_ONLY,
        CENTRAL,
        UNTRAINED,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", "Arrived", "Round", "ServerOperators"]
