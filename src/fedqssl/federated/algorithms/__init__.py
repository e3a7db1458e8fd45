"""Federated algorithms by name, one file each; see :class:`fedqssl.federated.algorithms.base.Algorithm`."""

from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, ServerOperators
from fedqssl.federated.algorithms.central import CENTRAL
from fedqssl.federated.algorithms.fed_avg import FED_AVG
from fedqssl.federated.algorithms.fed_distill import FED_DISTILL
from fedqssl.federated.algorithms.fed_paq import FED_PAQ
from fedqssl.federated.algorithms.fed_prox import FED_PROX
from fedqssl.federated.algorithms.fed_qssl import FED_QSSL
from fedqssl.federated.algorithms.fed_qssl_plus import FED_QSSL_PLUS
from fedqssl.federated.algorithms.fed_refine import FED_REFINE
from fedqssl.federated.algorithms.fed_seq import FED_SEQ
from fedqssl.federated.algorithms.fed_simclr import FED_SIMCLR
from fedqssl.federated.algorithms.fed_simsiam import FED_SIMSIAM
from fedqssl.federated.algorithms.local_only import LOCAL_ONLY
from fedqssl.federated.algorithms.server_only import SERVER_ONLY
from fedqssl.federated.algorithms.untrained import UNTRAINED
from fedqssl.imported import imported, nearest

ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (
        FED_QSSL,
        FED_QSSL_PLUS,
        FED_REFINE,
        FED_DISTILL,
        FED_SEQ,
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


class AlgorithmError(ValueError):
    """The algorithm is unknown or invalid; the message says what to change."""


def get_algorithm(name: str) -> Algorithm:
    """One of ``ALGORITHMS``, or a user's own by import path, ``package.module:NAME``.

    Raises:
        AlgorithmError: one line that says what to change.
    """
    if ":" in name:
        found = imported(name, "algorithm", AlgorithmError)
        if not isinstance(found, Algorithm):
            raise AlgorithmError(f"algorithm {name!r} is a {type(found).__name__}, not an Algorithm")
        return found
    if name not in ALGORITHMS:
        known = f"algorithms: {', '.join(ALGORITHMS)}; or an import path like package.module:NAME"
        raise AlgorithmError(f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)} ({known})")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmError", "Arrived", "Round", "ServerOperators", "get_algorithm"]
