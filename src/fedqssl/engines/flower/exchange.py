"""The plain loop of the server's side: send each node its own message, take replies in any order, give up at a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

TTL = 7 * 24 * 3600.0
"""Seconds for which a message without a deadline may wait for its node."""
GRACE = 60.0
"""Seconds for which Flower keeps a message beyond our deadline, so that it is we who say that a reply is late."""
REASONS = {
    2: "it raised an error",
    3: "its reply did not arrive in full",
    4: "its reply did not arrive",
    5: "it went away",
    8: "it crashed",
}
"""Of failures that Flower reports by number."""


class ExchangeError(RuntimeError):
    """Nobody carries messages any more."""


class Exchange:
    """Sends and receives through a Grid, by name.

    Args:
        grid: Flower's.
        poll: seconds between two looks for replies.
        alive: whether whatever carries the messages still runs.
    """

    def __init__(self, grid: Grid, poll: float = 0.1, alive: Callable[[], bool] = lambda: True) -> None:
        self.grid, self.poll, self.alive = grid, poll, alive

    def ask(
        self,
        kind: str,
        contents: Mapping[str, RecordDict],
        nodes: Mapping[str, int],
        deadline: float | None = None,
        done: Callable[[int], None] = lambda count: None,
    ) -> tuple[dict[str, RecordDict], dict[str, str]]:
        """Replies by name, and why there is none of the others.

        Failures are told apart by the message they reply to: an error that Flower makes itself does not name its node.
        """
        failed = {name: "it is not connected" for name in contents if name not in nodes}
        waiting: dict[str, str] = {}
        for name in contents:
            if name in nodes:
                message = Message(contents[name], nodes[name], kind, ttl=TTL if deadline is None else deadline + GRACE)
                pushed = [sent for sent in self.grid.push_messages([message]) if sent]
                if pushed:
                    waiting[pushed[0]] = name
                else:
                    failed[name] = "the message could not be sent to it"
        replies: dict[str, RecordDict] = {}
        end = time.monotonic() + deadline if deadline else float("inf")
        while waiting and time.monotonic() < end:
            for message in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(message.metadata.reply_to_message_id, "")
                if not name:
                    continue  # an answer to nothing that was asked
                if message.has_error():
                    failed[name] = reason(message)
                else:
                    replies[name] = message.content
                done(len(replies) + len(failed))
            if not self.alive():
                raise ExchangeError("what carries the messages has ended")
            if waiting:
                time.sleep(self.poll)
        failed |= dict.fromkeys(waiting.values(), f"no reply within {deadline or 0:g} s")
        return replies, failed


def reason(message: Message) -> str:
    """Why Flower has an error in place of a reply."""
    error = message.error
    known = REASONS.get(error.code, f"Flower's error {error.code}")
    return f"{known}: {error.reason}" if error.reason else known
