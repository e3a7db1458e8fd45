"""The simulated clock against hand computations, and in whole runs."""

import json
import math
from pathlib import Path

import pytest

from fedqssl.config import ConfigError
from fedqssl.cost.devices import read_devices
from fedqssl.cost.ledger import ledger
from fedqssl.cost.sizes import Sizes, client_sizes
from fedqssl.runs import RunError, resume, start
from fedqssl.runs.clock import Clock, Timed, clock_of, read_windows
from fedqssl.runs.folder import RunFolder
from tiny_run import figures, model_bytes, silent, stopped_after, tiny, tiny_context

TABLE = """
[default]
uplink = "1 Mbit/s"
downlink = "2 Mbit/s"
operations_per_second = "1 T"
power = "2 W"
[clients.client-01]
operations_per_second = "1 G"
power = "5 W"
"""
SLOW = "client-01"


def clock(deadline=None, windows=None, least=1):
    """Three clients whose rounds take 7, 11 and 3 seconds."""
    clients = {"a": Timed(1, 4, 2, 8.0), "b": Timed(1, 8, 2, 40.0), "c": Timed(1, 1, 1, 1.0)}
    return Clock(clients, windows or {}, deadline, least)


def test_a_round_waits_for_the_slowest():
    found = clock().play(["c", "a", "b"], 100.0)
    assert (found.start, found.seconds, found.end, found.failed) == (100.0, 11.0, 111.0, {})
    assert found.joules == {"a": 8.0, "b": 40.0, "c": 1.0}
    assert found.line() == {"simulated_seconds": 11.0, "simulated_time": 111.0, "simulated_joules": 49.0}
    assert clock().play(["c"], 0.0).seconds == 3.0


def test_the_deadline_ends_it():
    found = clock(deadline=5.0).play(["a", "b", "c"], 0.0)
    assert found.seconds == 5.0 and sorted(found.failed) == ["a", "b"]
    assert found.joules == {"a": 8.0, "b": 20.0, "c": 1.0}  # a has trained 4 of 4 seconds, b 4 of 8
    assert clock(deadline=7.0).play(["a"], 0.0).failed == {}


def test_clients_go_offline():
    windows = {"b": ((0.0, 4.0), (20.0, 40.0))}
    found = clock(windows=windows).play(["a", "b"], 0.0)
    assert found.seconds == 7.0 and list(found.failed) == ["b"] and "offline after 4.0 s of 11.0 s" in found.failed["b"]
    assert found.joules["b"] == 40.0 * 3 / 8
    assert clock(windows=windows).play(["a", "b"], 20.0).failed == {}
    assert clock(windows=windows).play(["b"], 60.0).failed == {}  # after 40 seconds it starts again: 20
    assert clock(deadline=5.0, windows=windows).play(["b"], 0.0).seconds == 4.0


def test_the_server_waits_for_clients():
    times = clock(windows={"a": ((5.0, 9.0),), "b": ((7.0, 10.0),), "c": ((2.0, 3.0),)}, least=2)
    assert times.available(6.0) == ["a"] and times.available(3.0) == []
    assert times.next_start(0.0) == 7.0 and times.next_start(8.5) == 8.5
    assert times.next_start(9.5) == 17.0 and times.available(17.0) == ["a", "b"]
    with pytest.raises(RunError, match="never 3 clients"):
        clock(windows=dict(times.windows), least=3).next_start(0.0)


def test_windows_are_found_again_after_many_periods():
    """0.1, 0.3 and 0.7 have no exact floats."""
    times, now = clock(windows=dict.fromkeys("abc", ((0.1, 0.3), (0.6, 0.7))), least=3), 0.0
    for _ in range(2000):
        start = times.next_start(now)
        assert start - now < 0.41 and len(times.available(start)) == 3
        now = start + times.left("a", start)


def test_windows_of_a_file(tmp_path):
    path = tmp_path / "there.csv"
    path.write_text("client,start,end\nb,10,20\na,0,5\nb,20,30.5\nb,0,1\n")
    assert read_windows(path, ["a", "b"]) == {"a": ((0.0, 5.0),), "b": ((0.0, 1.0), (10.0, 30.5))}
    for text, words in (
        ("name,start\n", "first row"),
        ("client,start,end\nx,0,1\n", "row 2 names 'x'"),
        ("client,start,end\na,3,3\n", "row 2 needs"),
        ("client,start,end\na,0,inf\n", "row 2 needs"),
    ):
        path.write_text(text)
        with pytest.raises(RunError, match=words):
            read_windows(path, ["a", "b"])


def by_hand(config) -> dict[str, tuple[float, float]]:
    """Seconds and joules of each client's round, from the ledger and the numbers in ``TABLE``."""
    found = {}
    for name, cost in ledger(config, client_sizes(config)).clients.items():
        speed, watts = (1e9, 5.0) if name == SLOW else (1e12, 2.0)
        compute = cost.operations.total / speed
        found[name] = (8 * cost.bytes_down / 2e6 + compute + 8 * cost.bytes_up / 1e6, watts * compute)
    return found


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return path


def settings(table, **changes):
    return tiny(**{"algorithm": "fed_simclr", "rounds": 3, "clock": str(table), "evaluation.knn_every": 0, **changes})


def test_the_sum_over_rounds_is_the_hand_computation(table, tmp_path):
    """Two of three clients in a round; with and without the straggler."""
    config = settings(table, fraction=0.5)
    result = start(config, tmp_path / "run", say=silent)
    hand, lines, total = by_hand(config), RunFolder(result.folder).lines(), 0.0
    for line in lines:
        took = line["training_seconds"].keys()
        assert len(took) == 2
        assert line["simulated_seconds"] == max(hand[name][0] for name in took)
        assert line["simulated_joules"] == math.fsum(hand[name][1] for name in took)
        total += max(hand[name][0] for name in took)
        assert line["simulated_time"] == total
    assert max(hand, key=lambda name: hand[name][0]) == SLOW
    rounds = read_devices(table).rounds(ledger(config, client_sizes(config)))
    assert {name: found.seconds for name, found in rounds.items()} == {name: s for name, (s, _) in hand.items()}


def test_a_deadline_leaves_the_straggler_out_and_a_run_resumes(table, tmp_path):
    """The table may change after the run began: its clock does not."""
    others = [seconds for name, (seconds, _) in by_hand(settings(table)).items() if name != SLOW]
    config = settings(table, deadline=max(others) * 1.01)
    whole = start(config, tmp_path / "whole", say=silent)
    lines = RunFolder(whole.folder).lines()
    assert all(list(line["rejected"]) == [SLOW] and SLOW not in line["weights"] for line in lines)
    assert [line["simulated_seconds"] for line in lines] == [config.deadline] * 3
    with stopped_after(1):
        start(config, tmp_path / "parts", say=silent)
    table.write_text(TABLE.replace("1 G", "1 G"))
    parts = resume(tmp_path / "parts", say=silent)
    assert model_bytes(parts.folder) == model_bytes(whole.folder) and figures(parts) == figures(whole)
    again = RunFolder(parts.folder).lines()
    assert [line["simulated_time"] for line in again] == [line["simulated_time"] for line in lines]


def test_a_round_without_enough_replies_changes_nothing(table, tmp_path):
    result = start(settings(table, deadline=1e-6, rounds=1), tmp_path / "run", say=silent)
    (line,) = RunFolder(result.folder).lines()
    assert len(line["rejected"]) == 3 and "fewer than min_clients" in line["round_rejected"]
    assert line["simulated_seconds"] == 1e-6


def test_availability_decides_who_takes_part(table, tmp_path):
    path = tmp_path / "there.csv"
    path.write_text(f"client,start,end\n{SLOW},1e8,2e8\nclient-00,5,1e9\nclient-02,9,1e9\n")
    result = start(settings(table, availability=str(path), rounds=1, min_clients=2), tmp_path / "run", say=silent)
    (line,) = RunFolder(result.folder).lines()
    assert sorted(line["weights"]) == ["client-00", "client-02"] and not line["rejected"]
    assert line["simulated_time"] == 9 + line["simulated_seconds"]


def test_what_a_clock_needs(table, tmp_path):
    with pytest.raises(ConfigError, match="give clock=TABLE"):
        tiny(availability="x.csv")
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    assert clock_of(tiny_context(), folder) is None
    with pytest.raises(RunError, match="trains no clients"):
        clock_of(tiny_context(clock=str(table), algorithm="server_only"), folder)
    table.write_text('[default]\nmemory = "1 GiB"\n')
    with pytest.raises(RunError, match="no speed for client-00"):
        clock_of(tiny_context(clock=str(table)), folder)
    assert not (folder.path / "clock.json").exists()


def test_the_noted_clock_is_the_tables(table, tmp_path):
    context, folder = tiny_context(clock=str(table)), RunFolder.create(tmp_path / "run", overwrite=False)
    made = clock_of(context, folder)
    assert made == clock_of(context, folder)
    assert isinstance(json.loads(Path(folder.path / "clock.json").read_text()), dict)
    shape = context.train.images.shape[1:]
    sizes = Sizes(context.sizes, len(context.buffer()), tuple(shape))
    expected = read_devices(table).rounds(ledger(context.config, sizes))
    assert {n: t.seconds for n, t in made.clients.items()} == {n: r.seconds for n, r in expected.items()}
