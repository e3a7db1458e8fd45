"""Federated algorithms by name, one file each; see :class:`fedqssl.federated.algorithms.base.Algorithm`."""

from fedqssl.federated.algorithms.base import Algorithm, Round, Workers
from fedqssl.federated.algorithms.fed_qssl import FED_QSSL
from fedqssl.federated.algorithms.fed_simclr import FED_SIMCLR

ALGORITHMS: dict[str, Algorithm] = {a.name: a for a in (FED_QSSL, FED_SIMCLR)}

__all__ = ["ALGORITHMS", "Algorithm", "Round", "Workers"]
