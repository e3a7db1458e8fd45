"""Figures from finished cells: means and deviations over seeds, and differences paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedqssl.evaluation.statistics import Estimate
from fedqssl.runs.cells import Cell, State, read_result, state_of
from fedqssl.runs.result import RunResult


@dataclass(frozen=True)
class Spread:
    """Values by seed."""

    values: Mapping[int, float]

    @property
    def count(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Over seeds; None without any."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); None below two seeds."""
        return statistics.stdev(self.values.values()) if self.count > 1 else None


@dataclass(frozen=True)
class Difference:
    """Mean of differences at equal seeds, with a 95% interval (Student's t) if there are at least two seeds."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def paired(a: Spread, b: Spread) -> Difference | None:
    """``a - b`` at the seeds that both have; None if they share none."""
    values = [a.values[seed] - b.values[seed] for seed in sorted(a.values) if seed in b.values]
    if not values:
        return None
    if len(values) == 1:
        return Difference(values[0], None, None, 1)
    found = Estimate.of(values)
    return Difference(found.mean, found.low, found.high, len(values))


@dataclass(frozen=True)
class Measured:
    """Finished runs that differ only in their seed; accuracies in percent."""

    runs: Mapping[int, RunResult]

    def _spread(self, name: str) -> Spread:
        found = {seed: getattr(run, name) for seed, run in self.runs.items()}
        return Spread({seed: 100 * value for seed, value in found.items() if value is not None})

    @property
    def globally(self) -> Spread:
        """Global accuracy."""
        return self._spread("global_accuracy")

    @property
    def locally(self) -> Spread:
        """Mean local accuracy of the clients."""
        return self._spread("local_accuracy")

    def accuracies(self) -> dict[str, float | None]:
        """Mean and deviation of both."""
        found: dict[str, float | None] = {}
        for name, spread in (("global", self.globally), ("local", self.locally)):
            found |= {name: spread.mean, f"{name}_deviation": spread.deviation}
        return found

    def by_bits(self) -> dict[int, float]:
        """Mean local accuracy of the clients of each bitwidth, over all seeds."""
        found: dict[int, list[float]] = {}
        for run in self.runs.values():
            for client in run.clients.values():
                if client.local_accuracy is not None:
                    found.setdefault(client.bits, []).append(100 * client.local_accuracy)
        return {bits: statistics.fmean(values) for bits, values in sorted(found.items())}


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Percentages rounded to four decimals; values that are not floats are unchanged."""
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}


def at_common_seeds(found: Sequence[Measured]) -> list[Measured]:
    """The same groups, restricted to the seeds that all non-empty groups share, since the points of a figure are compared.

    Otherwise a base point with three seeds would be shifted against points with one. Without a common seed nothing
    changes.
    """
    known = [set(mine.runs) for mine in found if mine.runs]
    common = set.intersection(*known) if known else set()
    if not common:
        return list(found)
    return [Measured({seed: run for seed, run in mine.runs.items() if seed in common}) for mine in found]


def measure(cells: Sequence[Cell], out: Path) -> Measured:
    """The finished cells among these, which differ only in their seed."""
    done = [cell for cell in cells if state_of(cell, out) is State.DONE]
    return Measured({cell.config.seed: read_result(cell.folder(out)) for cell in done})


def seeds_in(out: Path) -> list[int]:
    """All seeds found in the folder, so that tables include the runs of earlier commands."""
    found = {path.name.rpartition("-seed")[2] for path in (out / "cells").glob("*-seed*")}
    return sorted(int(text) for text in found if text.isdecimal())


__all__ = ["Difference", "Measured", "Spread", "at_common_seeds", "measure", "paired", "rounded", "seeds_in"]
