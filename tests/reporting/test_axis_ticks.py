"""Ticks at an axis are round numbers, whatever the range."""

from __future__ import annotations

import pytest

from fedqssl.reporting.scales import AxisScale
from fedqssl.reporting.theme import tick


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (288.2, 403.5, ["300", "350", "400"]),
        (5, 5000, ["10", "100", "1,000"]),
        (40, 900, ["50", "100", "200", "500"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round(low: float, high: float, words: list[str]) -> None:
    assert [tick(value) for value in AxisScale(low, high, 0, 100, log=True).ticks()] == words
