"""Run the cells of tables and figures, and write each table or figure as soon as its cells are done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedqssl.config import load_config
from fedqssl.config.keys import nearest
from fedqssl.runs import Progress
from fedqssl.runs.cells import Cell, CellError, claimed, read_result, state_of
from fedqssl.runs.measured import seeds_in
from fedqssl.runs.run_cells import run_cells
from fedqssl.runs.text_table import Grid, to_csv, write_texts
from fedqssl.studies.paper.attack_table import Attacked, fill_attacks
from fedqssl.studies.paper.catalogue import (
    ATTACK_TABLE,
    DATASETS,
    EXPERIMENTS,
    AttackTable,
    Experiment,
    Table,
    at_scale,
    datasets_of,
    words_of,
)
from fedqssl.studies.paper.figures import Plotted, plot
from fedqssl.studies.paper.plan import Plan
from fedqssl.studies.paper.scales import SCALES, Scale
from fedqssl.studies.paper.tables import Filled, fill


@dataclass(frozen=True)
class ReproduceRequest:
    """A validated request.

    Args:
        experiments: tables and figures, each once.
        plan: scale and data.
        seeds: of the cells to run.
        only: algorithms to run; None for all. Tables show whatever is finished.
    """

    experiments: tuple[Experiment, ...]
    plan: Plan
    seeds: tuple[int, ...]
    only: frozenset[str] | None

    def cells(self, experiment: Experiment) -> list[Cell]:
        """The cells of this experiment to run."""
        return self.plan.cells(experiment, self.seeds, self.only)

    def all_cells(self) -> list[Cell]:
        """The cells of all experiments to run, each once, in order."""
        return list(dict.fromkeys(cell for experiment in self.experiments for cell in self.cells(experiment)))


def request(
    names: Sequence[str],
    scale: str,
    data: Sequence[str] = (),
    seeds: int = 1,
    only: Sequence[str] = (),
    out: Path | None = None,
) -> ReproduceRequest:
    """Validate a request.

    Args:
        names: tables and figures, or ``all``.
        scale: ``smoke``, ``small``, ``medium`` or ``paper``.
        data: where images are: ``SPEC``, or ``cifar10=SPEC`` and ``cifar100=SPEC`` where both are needed.
        seeds: number of seeds: 0, 1, ...
        only: algorithms to run; by default all.
        out: the output folder; its cells say where the images are if ``data`` does not.

    Raises:
        ValueError: one line that says what is wrong and what is allowed.
    """
    known = [*EXPERIMENTS, "all"]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown experiment {name!r}{nearest(name, known)} (experiments: {', '.join(known)})")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}{nearest(scale, SCALES)} (scales: {', '.join(SCALES)})")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, not {seeds}")
    here = [name for name, experiment in EXPERIMENTS.items() if at_scale(experiment, scale)]
    for name in names:
        if name not in here and name != "all":
            raise ValueError(f"{name} is not run at scale {scale}; experiments there: {', '.join(here)}")
    every = [name for name in here if name != ATTACK_TABLE.name]  # a hundred runs that are not about the paper
    wanted = list(dict.fromkeys(n for name in names for n in (every if name == "all" else [name])))
    experiments = tuple(EXPERIMENTS[name] for name in wanted)
    words = sorted({word for e in experiments for word in words_of(e)})
    for name in only:
        if name not in words:
            what = "server part or attack" if wanted == [ATTACK_TABLE.name] else "algorithm"
            raise ValueError(
                f"--only: no row has the {what} {name!r}{nearest(name, words)} ({what}s: {', '.join(words)})"
            )
    needed = tuple(dict.fromkeys(name for e in experiments for name in datasets_of(e)))
    found = _data(data, needed)
    if out is not None:
        found = {**_data_of_cells(SCALES[scale], needed, out), **found}
    plan = Plan(SCALES[scale], found)
    return ReproduceRequest(experiments, plan, tuple(range(seeds)), frozenset(only) or None)


def _data(specs: Sequence[str], needed: Sequence[str]) -> dict[str, str]:
    """Where each of the paper's datasets is."""
    found: dict[str, str] = {}
    if specs and not needed:
        raise ValueError(f"attacks are run on embedded images; leave out --data {specs[0]}")
    for spec in specs:
        name, equals, place = spec.partition("=")
        if equals and name in DATASETS:
            if name not in needed:
                raise ValueError(f"none of these experiments uses {name}; leave out --data {spec}")
            found[name] = place
        elif len(needed) == 1:
            found[needed[0]] = spec
        else:
            raise ValueError(
                f"CIFAR-10 and CIFAR-100 are both needed: write --data cifar10=SPEC --data cifar100=SPEC, not --data {spec}"
            )
    return found


def _data_of_cells(scale: Scale, needed: Sequence[str], out: Path) -> dict[str, str]:
    """The data on which existing cells were run."""
    found = {}
    for name in needed:
        for label in (scale.bases[name].label, name):
            for path in sorted((out / "cells").glob(f"{label}-*-seed*/config.toml"))[:1]:
                found[name] = load_config(path).data
    return found


@dataclass(frozen=True)
class Reproduced:
    """The outcome: tables as text for the terminal, and the error to end with if cells failed."""

    grids: tuple[Grid, ...]
    error: CellError | None


def reproduce(wanted: ReproduceRequest, out: Path, jobs: int | None, progress: Progress) -> Reproduced:
    """Run all cells; write every table and figure as soon as its cells are done.

    Raises:
        CellError: before anything is run, if the folder or one of its cells cannot be used.
    """
    writer = _Writer(wanted, out, progress)
    with claimed(out):
        _check_all(wanted, out)
        error = run_cells(wanted.all_cells(), out, jobs, progress, writer.ended)
        writer.write_rest()
        writer.write_cells()
    return Reproduced(writer.written(), error or writer.error())


def collect(wanted: ReproduceRequest, out: Path, progress: Progress) -> Reproduced:
    """Write every table and figure from the finished cells, and run nothing; another command may be running them.

    Raises:
        CellError: if one of the cells has other settings, or none is finished.
    """
    _check_all(wanted, out)
    writer = _Writer(wanted, out, progress)
    writer.write_rest()
    if not writer.grids and not writer.unwritten:
        raise CellError(f"none of the requested runs in {out} is finished; leave out --collect to run them")
    writer.write_cells()
    return Reproduced(writer.written(), writer.error())


def _check_all(wanted: ReproduceRequest, out: Path) -> None:
    """Check all cells at all seeds in the folder: those of earlier commands appear in the tables, so they must match, too."""
    for experiment in wanted.experiments:
        for cell in wanted.plan.cells(experiment, sorted({*wanted.seeds, *seeds_in(out)})):
            state_of(cell, out)


class _Writer:
    """Tracks which cells each experiment is waiting for, and writes it when the last one ends."""

    def __init__(self, wanted: ReproduceRequest, out: Path, progress: Progress) -> None:
        self.wanted, self.out, self.progress = wanted, out, progress
        self.waiting = {e.name: set(wanted.cells(e)) for e in wanted.experiments}
        self.grids: dict[str, Grid] = {}
        self.unwritten: dict[str, str] = {}

    def ended(self, cell: Cell) -> None:
        """A cell is done."""
        for experiment in self.wanted.experiments:
            left = self.waiting.get(experiment.name, set())
            if cell in left:
                left.discard(cell)
                if not left:
                    self._write(experiment)

    def written(self) -> tuple[Grid, ...]:
        """What was written, in the requested order."""
        return tuple(self.grids[e.name] for e in self.wanted.experiments if e.name in self.grids)

    def write_rest(self) -> None:
        """Incomplete experiments: cells failed, or were not requested."""
        for experiment in self.wanted.experiments:
            if experiment.name in self.waiting:
                self._write(experiment)

    def _write(self, experiment: Experiment) -> None:
        """Write the experiment's files from the finished cells, if any."""
        del self.waiting[experiment.name]
        with self._noted(experiment.name):
            made: Filled | Plotted | Attacked
            if isinstance(experiment, Table):
                made = fill(experiment, self.wanted.plan, self.out)
            elif isinstance(experiment, AttackTable):
                made = fill_attacks(experiment, self.wanted.plan, self.out)
            else:
                made = plot(experiment, self.wanted.plan, self.out)
            if not made.empty:
                endings = ",".join(path.suffix[1:] for path in made.write(self.out))
                self.progress.say(f"wrote {self.out / experiment.name}.{{{endings}}}")
                self.grids[experiment.name] = made.grid()

    def write_cells(self) -> None:
        """The list of all cells."""
        with self._noted("cells.csv"):
            _write_cells(self.out)

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Files that cannot be written are reported at the end; this stops neither cells nor other tables."""
        try:
            yield
        except (CellError, OSError) as error:
            self.unwritten[name] = str(error)
            self.progress.say(f"warning: {name} was not written: {error}")

    def error(self) -> CellError | None:
        """One line about what could not be written."""
        reasons = "; ".join(f"{name}: {why}" for name, why in self.unwritten.items())
        return CellError(f"not written: {reasons}") if reasons else None


def _write_cells(out: Path) -> None:
    """``cells.csv``: every finished run with its time, which the tables leave out so that they are reproducible."""
    records = []
    for path in sorted((out / "cells").glob("*/result.json")):
        result = read_result(path.parent)
        records.append(
            {
                "cell": path.parent.name,
                "algorithm": result.algorithm,
                "bits": json.dumps([client.bits for client in result.clients.values()]),
                "seed": result.seed,
                "global": result.global_accuracy,
                "local": result.local_accuracy,
                "client_seconds": round(result.client_seconds, 2),
                "server_seconds": round(result.server_seconds, 2),
                "bytes_up": result.bytes_up,
                "bytes_down": result.bytes_down,
            }
        )
    if records:
        write_texts("cells", {"csv": to_csv(records)}, out)
