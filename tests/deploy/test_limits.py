"""What a client may use: a rate, on average, and a part of the day."""

from datetime import datetime

import pytest

from fedqssl.deploy.fleet import FleetError
from fedqssl.deploy.limits import Allowance, Hours, Rate, parse_rate


@pytest.mark.parametrize(("text", "rate"), [("200k", 200e3), ("2M", 2e6), ("1.5m", 1.5e6), ("64000", 64e3)])
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "999", "-5k", "1e9", "2G", "5 M"])
def test_what_is_not_a_rate(text):
    with pytest.raises(FleetError, match="--max-rate takes bytes per second, at least 1k"):
        parse_rate(text)


def test_the_average_is_kept():
    """Pieces go as they are; the pauses between them keep the average."""
    now = [0.0]
    rate = Rate(1000.0, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(10):
        rate.spend(500)
    assert now[0] == 4.5  # the last piece is on its way
    now[0] = 100.0
    rate.spend(500)
    assert now[0] == 100.0  # what was not used before is not saved up
    rate.spend(500)
    assert now[0] == 100.5
    Rate(None, sleep=lambda seconds: pytest.fail("there is no limit")).spend(10**9)


@pytest.mark.parametrize(
    ("text", "clock", "wait"),
    [
        ("1-6", "00:00:00", 3600),
        ("1-6", "01:00:00", 0),
        ("1-6", "05:59:59", 0),
        ("1-6", "06:00:00", 19 * 3600),
        ("22-6", "23:30:00", 0),
        ("22-6", "03:00:00", 0),
        ("22-6", "12:00:30", 10 * 3600 - 30),
        ("22:30-6", "22:29:59", 1),
        ("0-24", None, None),
        ("20-24", "23:59:00", 0),
        ("20-24", "00:00:00", 20 * 3600),
    ],
)
def test_hours(text, clock, wait):
    if clock is None:
        with pytest.raises(FleetError, match="two different times"):
            Hours.parse(text)
        return
    now = datetime.fromisoformat(f"2026-01-01T{clock}")
    assert Hours.parse(text).seconds_until(now) == wait


@pytest.mark.parametrize("text", ["", "1", "1-", "6-6", "25-3", "1:70-3", "a-b", "1-6-9"])
def test_what_are_not_hours(text):
    with pytest.raises(FleetError, match="--hours takes two different times of the day, like 1-6 or 22:30-6"):
        Hours.parse(text)


def test_without_limits_a_client_may_always_take_part():
    assert Allowance.parse(None, None).seconds_until_open() == 0.0
    assert str(Allowance.parse("1M", "22:30-6").hours) == "22:30 to 6:00"
