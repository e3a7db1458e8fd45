"""The time left is that of the clients which are still to come, by their bits, not the mean of those that have been."""

import pytest

from fedqssl.runs.metrics import checked_line
from fedqssl.runs.round import sampled
from fedqssl.runs.time_left import TimeLeft
from tiny_run import tiny_context

SECONDS = {4: 10.0, 8: 30.0, 32: 100.0}


def line(context, number, wall=None):
    """A round in which a client takes the seconds of its bits, and the server 2."""
    spent = {name: SECONDS[context.bits[name]] for name in sampled(context, number)}
    clock = sum(spent.values()) if wall is None else wall
    return {"training_seconds": spent, "clients_wall_seconds": clock, "server_seconds": 2.0}


@pytest.fixture(scope="module")
def turns():
    """One client a round, each in its turn."""
    return tiny_context(algorithm="fed_seq", fraction=0.3, rounds=7)


def test_clients_that_are_still_to_come_count_by_their_bits(turns):
    found = TimeLeft()
    assert found.left(turns, 0) == 0.0
    for number in range(3):
        found.saw(turns, line(turns, number))
    to_come = [SECONDS[turns.bits[sampled(turns, number)[0]]] for number in range(5, 7)]
    assert found.left(turns, 5) == pytest.approx(sum(to_come) + 2 * 2.0)
    assert found.left(turns, 5) != pytest.approx(2 * (sum(SECONDS.values()) / 3 + 2.0))  # the mean of the rounds so far
    assert found.left(turns, 7) == 0.0


def test_bits_that_were_not_seen_yet_count_as_the_nearest(turns):
    found = TimeLeft()
    by_bits = {turns.bits[sampled(turns, number)[0]]: number for number in range(3)}
    found.saw(turns, line(turns, by_bits[4]))
    found.saw(turns, line(turns, by_bits[8]))
    last = turns.bits[sampled(turns, 6)[0]]
    assert found.left(turns, 6) == pytest.approx({4: 10.0, 8: 30.0, 32: 30.0}[last] + 2.0)


def test_clients_at_the_same_time_and_what_else_a_round_takes():
    context, found = tiny_context(rounds=5), TimeLeft()
    found.saw(context, line(context, 0, wall=70.0), seconds=75.0)  # 140 seconds of training in 70, and 5 besides
    assert found.left(context, 1) == pytest.approx(4 * 75.0)
    found = TimeLeft()
    found.saw(context, line(context, 0, wall=70.0))  # read from its line: the server's seconds alone
    assert found.left(context, 1) == pytest.approx(4 * 72.0)


def test_the_start_of_the_workers_does_not_count_for_later_rounds():
    context, found = tiny_context(rounds=5), TimeLeft()
    found.saw(context, line(context, 0, wall=700.0), seconds=800.0)
    assert found.left(context, 1) == pytest.approx(4 * 800.0)  # nothing else is known
    found.saw(context, line(context, 1, wall=70.0), seconds=75.0)
    found.saw(context, line(context, 2, wall=70.0), seconds=77.0)
    assert found.left(context, 3) == pytest.approx(2 * (70.0 + 6.0))


def test_a_server_alone_and_lines_of_older_versions():
    context, found = tiny_context(algorithm="server_only", rounds=4), TimeLeft()
    found.saw(context, {"server_seconds": 3.0}, seconds=4.0)
    found.saw(context, {"server_seconds": None, "training_seconds": {"client-00": None, "gone": 5.0}})
    assert found.left(context, 2) == 0.0
    found.saw(context, {"server_seconds": 3.0}, seconds=4.0)
    assert found.left(context, 2) == pytest.approx(2 * 2.0)


def test_a_line_with_other_things_in_it_is_refused():
    with pytest.raises(ValueError, match="training_seconds of round 1"):
        checked_line('{"round": 1, "training_seconds": {"a": "long"}}')
