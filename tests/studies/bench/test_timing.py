"""Interleaved timing with a clock of our own: orders, medians and ratios by hand."""

from __future__ import annotations

import pytest
import torch

from fedqssl.studies.bench.timing import interleaved, torch_threads


class Clock:
    """Stands still but for the seconds that a piece of work adds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, *seconds: float):
        costs = iter(seconds)

        def run() -> None:
            self.order.append(name)
            self.now += next(costs)

        return run


def test_repeats_are_interleaved_and_ratios_are_taken_within_a_repeat():
    clock = Clock()
    work = {"a": clock.work("a", 1, 1.0, 2.0, 4.0), "b": clock.work("b", 9, 0.5, 1.0, 4.0)}
    timings = interleaved(work, "a", repeats=3, warmup=1, clock=clock)
    assert clock.order == ["a", "b", "a", "b", "a", "b", "a", "b"]
    assert timings["a"].seconds == 2.0 and timings["a"].ratio == 1.0 and timings["a"].spread == 0.0
    assert timings["b"].seconds == 1.0
    assert timings["b"].ratio == 0.5  # median of 0.5, 0.5, 1.0
    assert timings["b"].spread == pytest.approx(0.25)  # quartiles 0.5 and 0.75


def test_one_repeat_has_no_spread():
    clock = Clock()
    timings = interleaved({"a": clock.work("a", 2.0), "b": clock.work("b", 3.0)}, "a", 1, 0, clock=clock)
    assert timings["b"].ratio == 1.5
    assert timings["b"].spread == 0.0


def test_the_work_runs_with_the_wanted_threads_and_they_are_restored():
    before = torch.get_num_threads()
    seen = []
    interleaved({"a": lambda: seen.append(torch.get_num_threads())}, "a", repeats=1, warmup=0, threads=1)
    assert seen == [1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("reference", "repeats"), [("missing", 1), ("a", 0)])
def test_bad_arguments(reference, repeats):
    with pytest.raises(ValueError):
        interleaved({"a": lambda: None}, reference, repeats=repeats)


def test_bad_threads():
    with pytest.raises(ValueError, match="threads"), torch_threads(0):
        pass
