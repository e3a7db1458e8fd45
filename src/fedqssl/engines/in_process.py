"""The default engine: clients are jobs for the worker processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping

from fedqssl.engines.engine import Replies
from fedqssl.engines.pool import Pool
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.context import Simulation
from fedqssl.federated.job import Job
from fedqssl.federated.perform import perform
from fedqssl.lowbit import NonFiniteError


def _train(simulation: Simulation, name: str, payload: bytes, job: Job) -> tuple[bytes, ClientMetrics] | str:
    """Run the client's part of the round; returns the reason instead if its training diverges."""
    try:
        return perform(job, payload, simulation.client(name))
    except NonFiniteError as error:
        return str(error)


class InProcess:
    """Clients of a simulation on this machine."""

    def __init__(self, pool: Pool[Simulation]) -> None:
        self.pool = pool

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`. The largest clients start first, so that workers finish together."""
        sizes = self.pool.shared.sizes
        names = sorted(payloads, key=lambda n: (-sizes[n], n))
        found = self.pool.run("clients", _train, {n: (n, payloads[n], job) for n in names})
        replies = {n: reply for n, reply in sorted(found.items()) if not isinstance(reply, str)}
        return replies, {n: why for n, why in sorted(found.items()) if isinstance(why, str)}


__all__ = ["InProcess"]
