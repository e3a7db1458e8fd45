"""The server's loop: whoever holds it up does so alone."""

import threading
import time
import types

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from direct_grid import DirectGrid
from fedqssl.engines.flower import exchange
from fedqssl.engines.flower.exchange import Exchange, ExchangeError

NODES = {"car-1": 101, "car-2": 102, "van-3": 103}


def echo(message, context):
    return Message(message.content, reply_to=message)


class HalfSent(DirectGrid):
    """One reply has begun to arrive and never ends: Flower waits for the rest of it."""

    def __init__(self, node):
        super().__init__(dict.fromkeys(NODES.values(), echo))
        self.node, self.forever = node, threading.Event()

    def pull_messages(self, message_ids):
        if any(self.waiting[i].metadata.src_node_id == self.node for i in message_ids if i in self.waiting):
            self.forever.wait()
        return super().pull_messages(message_ids)


@pytest.fixture
def grid():
    found = HalfSent(102)
    yield found
    found.forever.set()


def told(name):
    return RecordDict({"told": ConfigRecord({"name": name})})


def test_a_reply_that_never_ends_holds_up_nobody_else(grid, monkeypatch):
    """The clock stands still until both others have arrived, however busy the machine is; then the deadline passes."""
    now = [0.0]
    monkeypatch.setattr(exchange, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def done(count):
        now[0] = 3600.0 * (count == 2)

    asked = {name: told(name) for name in NODES}
    replies, failed = Exchange(grid, 0.01, apart=True).ask("train", asked, NODES, 3600, done)
    assert {name: content["told"]["name"] for name, content in replies.items()} == {"car-1": "car-1", "van-3": "van-3"}
    assert failed == {"car-2": "no reply within 3600 s"}


def test_looked_for_together_it_would_and_the_deadline_still_holds(grid):
    began = time.monotonic()
    replies, failed = Exchange(grid, 0.01).ask("train", {n: told(n) for n in NODES}, NODES, deadline=1)
    assert "car-2" in failed and len(replies) + len(failed) == 3
    assert 1 <= time.monotonic() - began < 600


def test_a_reply_that_cannot_be_read_costs_its_senders_update():
    class Unreadable(DirectGrid):
        def pull_messages(self, message_ids):
            if any(self.waiting[i].metadata.src_node_id == 101 for i in message_ids if i in self.waiting):
                raise ValueError("no JSON")
            return super().pull_messages(message_ids)

    grid = Unreadable(dict.fromkeys(NODES.values(), echo))
    replies, failed = Exchange(grid, 0.01, apart=True).ask("train", {n: told(n) for n in NODES}, NODES, deadline=600)
    assert sorted(replies) == ["car-2", "van-3"]
    assert failed == {"car-1": "its reply cannot be read (ValueError)"}


def test_errors_of_the_grid_are_told():
    class Broken(DirectGrid):
        def pull_messages(self, message_ids):
            raise ConnectionError("the line is cut")

    with pytest.raises(ConnectionError, match="the line is cut"):
        Exchange(Broken(dict.fromkeys(NODES.values(), echo))).ask("train", {"car-1": told("car-1")}, NODES)


def test_who_carries_messages_may_end(grid):
    with pytest.raises(ExchangeError):
        Exchange(grid, 0.01, alive=lambda: False, apart=True).ask(
            "train", {"car-2": told("car-2")}, NODES, deadline=600
        )
