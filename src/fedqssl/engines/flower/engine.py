"""An engine whose clients are behind an exchange."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from fedqssl.engines.engine import Replies
from fedqssl.engines.flower.exchange import NOBODY, Exchange, ExchangeError, Watch
from fedqssl.engines.flower.wire import (
    EVALUATE,
    QUERY,
    TRAIN,
    Capabilities,
    Reply,
    Request,
    WireError,
    check_reply,
    pack,
    unpack,
)
from fedqssl.engines.pool import Tick, no_tick
from fedqssl.federated.context import Context
from fedqssl.federated.job import Job


class FlowerEngine:
    """Clients behind an exchange, by name.

    Args:
        context: the run; of it, its deadline and the names of its classes are used.
        run: the run's own id, which clients repeat.
        exchange: carries the messages; may be given later.
        tick: called with the number of replies received.

    ``nodes`` are the clients that are connected, ``known`` what they reported when they joined; ``watch`` hears who is awaited
    in a round, and may limit it.
    """

    def __init__(self, context: Context, run: str, exchange: Exchange | None = None, tick: Tick = no_tick) -> None:
        self.run, self._exchange, self.tick = run, exchange, tick
        self.deadline = context.config.deadline if context.config.clock is None else None  # that one is simulated
        self.class_names = context.train.class_names if context.task.supervised else None
        self.nodes: dict[str, int] = {}
        self.known: dict[str, Capabilities] = {}
        self.unserved: dict[str, str] = {}
        self.unbelievable: dict[str, float] = {}
        self.watch: Watch = NOBODY

    @property
    def exchange(self) -> Exchange:
        """The exchange that carries the messages."""
        assert self._exchange is not None, "the engine is not open"
        return self._exchange

    def discover(self, nodes: Mapping[str, int], deadline: float | None = None) -> dict[str, Capabilities | str]:
        """What these clients report about themselves, or why they did not answer; keyed by the caller's names for them."""
        blank = {key: pack(Request(self.run, "", {})) for key in nodes}
        replies, failed = self.exchange.ask(QUERY, blank, nodes, deadline)
        found: dict[str, Capabilities | str] = dict(failed)
        for key, records in replies.items():
            try:
                found[key] = unpack(records, Capabilities)[0]
            except WireError as error:
                found[key] = str(error)
        return found

    def meet(self, wanted: int, seconds: float) -> None:
        """Wait for this many clients of a simulation, and find out which is behind which of Flower's ids: these change.

        Raises:
            ExchangeError: the transport ended, or there are not as many in time.
            ChildProcessError: a client did not start.
        """
        end, ids = time.monotonic() + seconds, list[int]()
        while len(ids := [*self.exchange.grid.get_node_ids()]) < wanted:
            if not self.exchange.alive() or time.monotonic() > end:
                raise ExchangeError(f"{len(ids)} of {wanted} clients are there")
            time.sleep(0.05)
        for key, found in self.discover({str(i): i for i in ids}, seconds).items():
            if isinstance(found, str):
                raise ChildProcessError(f"a simulated client did not start: {found}")
            self.nodes[found.name], self.known[found.name] = int(key), found

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`."""
        found, failed = self._ask(TRAIN, payloads, job)
        return {name: (payload, reply.metrics()) for name, (reply, payload) in found.items()}, failed

    def accuracies(self, context: Context, payloads: Mapping[str, bytes]) -> dict[str, float]:
        """Hand every client its final model; returns the accuracies that clients with labels measure on their own images.

        Afterwards ``unserved`` says which clients did not receive it, and why, and ``unbelievable`` which accuracies were left
        out because they are not between 0 and 1.
        """
        found, self.unserved = self._ask(EVALUATE, payloads, context.job(context.config.rounds, 0.0))
        given = {name: reply.accuracy for name, (reply, _) in found.items() if reply.accuracy is not None}
        self.unbelievable = {name: a for name, a in given.items() if not 0 <= a <= 1}
        return {name: a for name, a in given.items() if name not in self.unbelievable}

    def _ask(
        self, kind: str, payloads: Mapping[str, bytes], job: Job
    ) -> tuple[dict[str, tuple[Reply, bytes]], dict[str, str]]:
        """Valid replies to the request, and why the other clients failed."""
        about = job.to_json(), self.class_names
        requests = {n: Request(self.run, secrets.token_hex(16), *about) for n in sorted(payloads)}
        contents = {n: pack(requests[n], payloads[n]) for n in requests}
        what = "clients" if kind == TRAIN else "evaluation"
        self.tick(what, 0, len(contents))
        arrived, failed = self.exchange.ask(
            kind, contents, self.nodes, self.deadline, lambda done: self.tick(what, done, len(contents)), self.watch
        )
        found = {}
        for name in sorted(arrived):
            try:
                reply, payload = unpack(arrived[name], Reply)
                check_reply(reply, requests[name], job, self.known[name].samples)
                if reply.failed is not None:
                    failed[name] = reply.failed
                else:
                    found[name] = reply, payload
            except WireError as error:
                failed[name] = str(error)
        return found, dict(sorted(failed.items()))
