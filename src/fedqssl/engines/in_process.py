"""The default engine: clients are jobs for the worker processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
        self._spent: dict[int, tuple[float, int]] = {}

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`. The longest jobs start first, so that workers finish together."""
        found = self.pool.run("clients", _train, {n: (n, payloads[n], job) for n in self.longest_first(payloads)})
        replies = {n: reply for n, reply in sorted(found.items()) if not isinstance(reply, str)}
        for name, (_, metrics) in replies.items():
            seconds, images = self._spent.get(self.pool.shared.bits[name], (0.0, 0))
            self._spent[self.pool.shared.bits[name]] = seconds + metrics.seconds, images + metrics.samples
        return replies, {n: why for n, why in sorted(found.items()) if isinstance(why, str)}

    def longest_first(self, names: Iterable[str]) -> list[str]:
        """By images times the seconds per image that clients of the same bits took so far; of the slowest if they are unknown."""
        sizes, bits = self.pool.shared.sizes, self.pool.shared.bits
        rates = {b: seconds / images for b, (seconds, images) in self._spent.items() if images}
        slowest = max(rates.values(), default=1.0)  # an unknown job may be a long one
        return sorted(names, key=lambda n: (-sizes[n] * rates.get(bits[n], slowest), n))


__all__ = ["InProcess"]
