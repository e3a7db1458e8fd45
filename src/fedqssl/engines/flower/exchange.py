"""The server's loop: send each client its own message, accept replies in any order, give up at a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedqssl.engines.flower.wire import plain

TTL = 7 * 24 * 3600.0
"""Seconds for which a message without a deadline may wait for its client."""
GRACE = 60.0
"""Seconds for which Flower keeps a message beyond our deadline, so that we, not Flower, report a late reply."""
DISCONNECTED = 5
"""Flower's number for a client whose heartbeat is missing."""
REASONS = {
    2: "it raised an error",
    3: "its reply did not arrive in full",
    4: "its reply did not arrive",
    DISCONNECTED: "it disconnected",
    8: "it crashed",
}
"""Descriptions of the failures that Flower reports by number."""


CARRIER = (OSError, httpx.TransportError)
"""Errors of the transport. Any other error raised while reading a reply is caused by that reply."""

Arrivals = queue.SimpleQueue[tuple[Sequence[str], Message | Exception]]
"""A reply or an error, with the messages that were polled."""


class ExchangeError(RuntimeError):
    """The transport has ended."""


class Watch:
    """What the caller decides and hears of while replies are awaited; this one decides nothing and hears nothing."""

    come_back = 0.0
    """Seconds for which a client that disconnected during the exchange is expected back."""

    def begin(self, names: Sequence[str]) -> None:
        """Requests are about to be sent to these clients."""

    def limit(self, answered: Mapping[str, float]) -> float | None:
        """Seconds that the exchange may take, given the seconds of those that have answered; None for no limit."""
        return None

    def awaited(self, names: Sequence[str], seconds: float) -> None:
        """These clients have not answered, this many seconds after they were asked; called about once a second."""

    def end(self, answered: Mapping[str, float]) -> None:
        """Nobody is awaited any more; these are the seconds of those that answered."""

    def returned(self) -> Collection[str]:
        """Clients that have connected anew since the last call: what they were asked is lost, and is sent again."""
        return ()


NOBODY = Watch()


@dataclass
class _Pending:
    """Where the exchange stands.

    ``waiting`` are names by message id, two ids of one name if it was asked again; ``answered`` are seconds by name;
    ``lost`` says why a client that may come back has gone, and until when it is expected.
    """

    waiting: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    replies: dict[str, RecordDict] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    lost: dict[str, tuple[str, float]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Who has not answered."""
        return sorted({*self.waiting.values(), *self.lost})

    def file(self, ids: Sequence[str], found: Message | Exception, seconds: float, come_back: float) -> None:
        """Store a reply, or what is wrong with it, under its sender's name."""
        if isinstance(found, Exception):
            if isinstance(found, CARRIER) or len(ids) != 1:
                raise found
            if name := self.waiting.get(ids[0]):
                self._settle(name)
                self.failed[name] = f"its reply cannot be read ({type(found).__name__})"
            return
        number = found.metadata.reply_to_message_id
        name = self.waiting.get(number, "")
        if not name:
            return  # an answer to nothing that was asked
        if not found.has_error():
            self._settle(name)
            self.replies[name], self.answered[name] = found.content, seconds
        elif found.error.code == DISCONNECTED and come_back:
            del self.waiting[number]
            if name not in self.waiting.values():  # it was not asked again
                self.lost[name] = reason(found), seconds + come_back
        else:
            self._settle(name)
            self.failed[name] = reason(found)

    def _settle(self, name: str) -> None:
        self.waiting = {number: other for number, other in self.waiting.items() if other != name}
        self.lost.pop(name, None)

    def give_up_lost(self, seconds: float) -> None:
        """Those who have not come back in time have failed."""
        for name in [n for n, (_, until) in self.lost.items() if seconds >= until]:
            self.failed[name] = self.lost.pop(name)[0]


class Exchange:
    """Sends and receives through a Grid, by name.

    Args:
        grid: Flower's.
        poll: seconds between two polls for replies.
        alive: whether the transport is still running.
        apart: poll for every reply in its own thread. Over a network, Flower's poll blocks until a reply that has begun to
            arrive is complete (up to three minutes), and other clients' replies should not wait for it.
    """

    def __init__(
        self, grid: Grid, poll: float = 0.1, alive: Callable[[], bool] = lambda: True, apart: bool = False
    ) -> None:
        self.grid, self.poll, self.alive, self.apart = grid, poll, alive, apart

    def ask(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        nodes: Mapping[str, int],
        deadline: float | None = None,
        done: Callable[[int], None] = lambda count: None,
        watch: Watch = NOBODY,
    ) -> tuple[dict[str, RecordDict], dict[str, str]]:
        """Replies by name, and why the others are missing.

        Failures are matched by the message they reply to: an error created by Flower itself does not name its client.
        """
        watch.begin(sorted(contents))
        first = deadline if deadline is not None else watch.limit({})
        ttl = TTL if first is None else first + GRACE
        pending, began = _Pending(), time.monotonic()
        arrived: Arrivals = queue.SimpleQueue()
        enough = threading.Event()

        def listen(ids: list[str]) -> None:
            words = ids, arrived, enough, len(contents)
            threading.Thread(target=self._listen, args=words, daemon=True).start()

        self._send(kind, contents, nodes, ttl, pending)
        for ids in [[key] for key in pending.waiting] if self.apart else [list(pending.waiting)]:
            listen(ids)
        limit = first
        try:
            while pending.waiting or pending.lost:
                seconds = time.monotonic() - began
                limit = deadline if deadline is not None else watch.limit(pending.answered)
                if limit is not None and seconds >= limit:
                    break
                left = 1.0 if limit is None else min(limit - seconds, 1.0)
                found = _next(arrived, left)
                if not self.alive():
                    raise ExchangeError("the connection to the clients has ended")
                if found is not None:
                    pending.file(*found, time.monotonic() - began, watch.come_back)
                    done(len(pending.replies) + len(pending.failed))
                for name in sorted({*watch.returned()} & {*pending.names()}):
                    if number := self._send_one(kind, contents[name], nodes[name], ttl):
                        pending.waiting[number] = name
                        pending.lost.pop(name, None)
                        listen([number])
                pending.give_up_lost(time.monotonic() - began)
                watch.awaited(pending.names(), time.monotonic() - began)
        finally:
            enough.set()
        watch.end(pending.answered)
        late = f"no reply within {limit or 0:g} s"
        pending.failed |= {name: pending.lost.get(name, (late, 0.0))[0] for name in pending.names()}
        return pending.replies, pending.failed

    def _send(
        self, kind: str, contents: Mapping[str, RecordDict], nodes: Mapping[str, int], ttl: float, pending: _Pending
    ) -> None:
        """Ask everybody who is connected."""
        for name in contents:
            if name not in nodes:
                pending.failed[name] = "it is not connected"
            elif number := self._send_one(kind, contents[name], nodes[name], ttl):
                pending.waiting[number] = name
            else:
                pending.failed[name] = "the message could not be sent to it"

    def _send_one(self, kind: str, content: RecordDict, node: int, ttl: float) -> str | None:
        """The message's id; None if it could not be sent."""
        pushed = self.grid.push_messages([Message(content, node, kind, ttl=ttl)])
        return next((sent for sent in pushed if sent), None)

    def _listen(self, ids: Sequence[str], arrived: Arrivals, enough: threading.Event, expected: int) -> None:
        """Put replies to these messages, or errors, into the queue; polls less often if many threads poll."""
        missing = set(ids)
        pause = max(self.poll, 0.02 * expected) if self.apart else self.poll
        try:
            while missing and not enough.is_set():
                for message in self.grid.pull_messages(sorted(missing)):
                    missing.discard(message.metadata.reply_to_message_id)
                    arrived.put((ids, message))
                if missing:
                    enough.wait(pause)
        except Exception as error:
            arrived.put((ids, error))


def _next(arrived: Arrivals, timeout: float) -> tuple[Sequence[str], Message | Exception] | None:
    try:
        return arrived.get(timeout=timeout)
    except queue.Empty:
        return None


def reason(message: Message) -> str:
    """Why Flower returned an error instead of a reply."""
    error = message.error
    known = REASONS.get(error.code, f"its reply failed with error {error.code}")
    return f"{known}: {plain(error.reason)}" if error.reason else known
