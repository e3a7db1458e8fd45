"""The default engine: both roles on this machine, clients of a round in the worker processes of the server's operators."""

from __future__ import annotations

from collections.abc import Mapping

from fedqssl.engines.context import Context
from fedqssl.engines.server_side import ServerSide
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.order import Order, carry_out
from fedqssl.lowbit import NonFiniteError


def _train(context: Context, name: str, payload: bytes, order: Order) -> tuple[bytes, ClientMetrics] | str:
    """The client's part of the algorithm; a client that diverges says why."""
    try:
        return carry_out(order, payload, context.member(name))
    except NonFiniteError as error:
        return str(error)


class InProcess(ServerSide):
    """Runs the jobs of a round; use as a context manager, so that worker processes end with it."""

    def train_clients(
        self, payloads: Mapping[str, bytes], round_number: int, lr: float, *, return_model: bool = False
    ) -> tuple[dict[str, tuple[bytes, ClientMetrics]], dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`. The largest start first, so that workers end together."""
        order = self.context.order(round_number, lr, return_model)
        size = {n: len(self.context.partition.clients[n].train) for n in payloads}
        names = sorted(payloads, key=lambda n: (-size[n], n))
        found = self._run("clients", _train, {n: (n, payloads[n], order) for n in names})
        replies = {n: found[n] for n in sorted(found) if not isinstance(found[n], str)}
        return replies, {n: found[n] for n in sorted(found) if isinstance(found[n], str)}
