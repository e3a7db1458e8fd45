"""How long a round waits for its clients, whom it hears of meanwhile, and who may come back."""

import types

from flwr.app import ConfigRecord, Error, Message, RecordDict

from direct_grid import DirectGrid
from fedqssl.engines.flower import exchange
from fedqssl.engines.flower.exchange import DISCONNECTED, Exchange, Watch
from fedqssl.engines.flower.patience import FACTOR, LEAST, Patience

NODES = {"car-1": 101, "car-2": 102, "van-3": 103}
ASKED = {name: RecordDict({"told": ConfigRecord({"name": name})}) for name in NODES}


def echo(message, context):
    return Message(message.content, reply_to=message)


def test_a_runs_own_deadline_is_kept():
    assert Patience(12.5).limit(["a", "b"], {"a": 1000.0}) == 12.5


def test_the_limit_is_a_multiple_of_the_slowest_usual_time():
    patience = Patience()
    assert patience.limit(["a", "b", "c"], {}) is None  # nobody is known
    for seconds in (100.0, 900.0, 110.0, 120.0, 115.0):
        patience.learn({"a": seconds, "b": 200.0})
    assert patience.usual("a") == 115.0 and patience.usual("c") is None  # one slow round is not usual
    assert patience.limit(["a", "b", "c"], {}) == FACTOR * 200.0
    assert patience.limit(["a", "b", "c"], {"c": 500.0}) == FACTOR * 500.0  # who is new counts from this round
    assert patience.limit(["c", "d", "e"], {"c": 500.0}) is None  # fewer than half are known
    assert patience.limit(["a"], {}) == FACTOR * 115.0
    patience.learn({"q": 0.5})
    assert patience.limit(["q"], {}) == LEAST


class Clock:
    """Time passes only when no reply is on its way: ten seconds at a time."""

    def __init__(self, monkeypatch, grid):
        self.now, self.grid = 0.0, grid
        monkeypatch.setattr(exchange, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(exchange, "_next", self.next)

    def next(self, arrived, timeout):
        sent = bool(self.grid.waiting)
        try:
            return arrived.get(timeout=60 if sent else 0.02)
        except exchange.queue.Empty:
            self.now += 10 * timeout
            return None


class Seen(Watch):
    """Remembers what it is told; ``back`` lists who has returned, call by call."""

    come_back = 60.0

    def __init__(self, patience=None, back=()):
        self.patience, self.back = patience or Patience(), list(back)
        self.waited, self.ended = [], None

    def limit(self, answered):
        return self.patience.limit(list(NODES), answered)

    def awaited(self, names, seconds):
        self.waited.append((tuple(names), seconds))

    def end(self, answered):
        self.ended = dict(answered)

    def returned(self):
        return self.back.pop(0) if self.back else ()


def ask(grid, watch):
    return Exchange(grid, 0.001, apart=True).ask("train", ASKED, NODES, watch=watch)


def test_a_client_that_never_answers_is_given_up_after_a_multiple_of_the_others_time(monkeypatch):
    """Without any deadline set, and in the first round; and it is said who is awaited."""
    grid, watch = DirectGrid(dict.fromkeys(NODES.values(), echo)), Seen()
    clock = Clock(monkeypatch, grid)
    grid.spoil[103] = lambda reply, message: None
    replies, failed = ask(grid, watch)
    assert sorted(replies) == ["car-1", "car-2"] and failed == {"van-3": f"no reply within {LEAST:g} s"}
    assert watch.waited[-1][0] == ("van-3",) and LEAST <= clock.now < LEAST + 20
    assert sorted(watch.ended) == ["car-1", "car-2"]


def gone(reply, message):
    return Message(Error(DISCONNECTED, ""), reply_to=message)


def test_who_disconnects_in_a_round_and_comes_back_is_asked_again(monkeypatch):
    grid, watch = DirectGrid(dict.fromkeys(NODES.values(), echo)), Seen(Patience(600))
    Clock(monkeypatch, grid)

    def once(reply, message):
        del grid.spoil[103]
        watch.back = [(), ("van-3",)]
        return gone(reply, message)

    grid.spoil[103] = once
    replies, failed = ask(grid, watch)
    assert sorted(replies) == sorted(NODES) and failed == {}
    assert [m.metadata.dst_node_id for m in grid.sent] == [101, 102, 103, 103]


def test_a_client_that_was_restarted_before_anybody_noticed_is_asked_again(monkeypatch):
    """Its message was delivered to the process that died: no reply and no error would ever come."""
    grid, watch = DirectGrid(dict.fromkeys(NODES.values(), echo)), Seen(Patience(600))
    Clock(monkeypatch, grid)
    grid.spoil[103] = lambda reply, message: grid.spoil.pop(103) and None
    watch.back = [(), ("van-3", "stranger"), ("car-1",)]
    replies, failed = ask(grid, watch)
    assert sorted(replies) == sorted(NODES) and failed == {}


def test_who_does_not_come_back_is_given_up(monkeypatch):
    grid, watch = DirectGrid(dict.fromkeys(NODES.values(), echo)), Seen(Patience(600))
    clock = Clock(monkeypatch, grid)
    grid.spoil[103] = gone
    failed = ask(grid, watch)[1]
    assert failed == {"van-3": "it disconnected"} and 60 <= clock.now < 80
    watch.come_back = 0.0
    assert ask(grid, watch)[1] == {"van-3": "it disconnected"} and clock.now < 80
