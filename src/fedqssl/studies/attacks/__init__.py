"""Hostile clients in simulations: what they send (``attacks``), and an engine in which some clients are hostile (``engine``).

For tests and experiments on one machine, ``fedqssl reproduce attacks`` among them. Nothing here talks to other machines, and no
other package imports it: production code has no hook for hostile clients.
"""

from fedqssl.studies.attacks.attacks import ATTACKS, Attack, Known
from fedqssl.studies.attacks.uploads import hostile_upload, malicious_clients

__all__ = ["ATTACKS", "Attack", "Known", "hostile_upload", "malicious_clients"]
