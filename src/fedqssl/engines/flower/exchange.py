"""The server's loop: send each client its own message, accept replies in any order, give up at a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedqssl.engines.flower.wire import plain

TTL = 7 * 24 * 3600.0
"""Seconds for which a message without a deadline may wait for its client."""
GRACE = 60.0
"""Seconds for which Flower keeps a message beyond our deadline, so that we, not Flower, report a late reply."""
REASONS = {
    2: "it raised an error",
    3: "its reply did not arrive in full",
    4: "its reply did not arrive",
    5: "it disconnected",
    8: "it crashed",
}
"""Descriptions of the failures that Flower reports by number."""


CARRIER = (OSError, httpx.TransportError)
"""Errors of the transport. Any other error raised while reading a reply is caused by that reply."""

Arrivals = queue.SimpleQueue[tuple[Sequence[str], Message | Exception]]
"""A reply or an error, with the messages that were polled."""


class ExchangeError(RuntimeError):
    """The transport has ended."""


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
    ) -> tuple[dict[str, RecordDict], dict[str, str]]:
        """Replies by name, and why the others are missing.

        Failures are matched by the message they reply to: an error created by Flower itself does not name its client.
        """
        waiting, failed = self._send(kind, contents, nodes, TTL if deadline is None else deadline + GRACE)
        replies: dict[str, RecordDict] = {}
        end = time.monotonic() + deadline if deadline else float("inf")
        arrived: Arrivals = queue.SimpleQueue()
        enough = threading.Event()
        for ids in [[key] for key in waiting] if self.apart else [list(waiting)]:
            threading.Thread(target=self._listen, args=(ids, arrived, enough, len(waiting)), daemon=True).start()
        try:
            while waiting and (left := end - time.monotonic()) > 0:
                try:
                    about, found = arrived.get(timeout=min(left, 1.0))
                except queue.Empty:
                    found = None
                if not self.alive():
                    raise ExchangeError("the connection to the clients has ended")
                if found is not None:
                    _file(about, found, waiting, replies, failed)
                    done(len(replies) + len(failed))
        finally:
            enough.set()
        failed |= dict.fromkeys(waiting.values(), f"no reply within {deadline or 0:g} s")
        return replies, failed

    def _send(
        self, kind: str, contents: Mapping[str, RecordDict], nodes: Mapping[str, int], ttl: float
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Client names by message id, and why no message could be sent to the others."""
        failed = {name: "it is not connected" for name in contents if name not in nodes}
        waiting: dict[str, str] = {}
        for name in contents:
            if name in nodes:
                message = Message(contents[name], nodes[name], kind, ttl=ttl)
                pushed = [sent for sent in self.grid.push_messages([message]) if sent]
                if pushed:
                    waiting[pushed[0]] = name
                else:
                    failed[name] = "the message could not be sent to it"
        return waiting, failed

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


def _file(
    ids: Sequence[str],
    found: Message | Exception,
    waiting: dict[str, str],
    replies: dict[str, RecordDict],
    failed: dict[str, str],
) -> None:
    """Store a reply, or what is wrong with it, under its sender's name."""
    if isinstance(found, Exception):
        if isinstance(found, CARRIER) or len(ids) != 1:
            raise found
        failed[waiting.pop(ids[0])] = f"its reply cannot be read ({type(found).__name__})"
        return
    name = waiting.pop(found.metadata.reply_to_message_id, "")
    if not name:
        return  # an answer to nothing that was asked
    if found.has_error():
        failed[name] = reason(found)
    else:
        replies[name] = found.content


def reason(message: Message) -> str:
    """Why Flower returned an error instead of a reply."""
    error = message.error
    known = REASONS.get(error.code, f"Flower's error {error.code}")
    return f"{known}: {plain(error.reason)}" if error.reason else known
