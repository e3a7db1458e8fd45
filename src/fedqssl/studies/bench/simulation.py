"""Throughput of simulations: ours, pfl-research, Flower on Ray and a bare loop on one workload, each in its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from fedqssl.data.images import ImageSet
from fedqssl.data.registry import load_dataset
from fedqssl.studies.bench.records import Record, Row, Skipped
from fedqssl.studies.bench.throughput.workload import BEGIN, COHORT, END, IMAGES

PFL = "0.6.0"
_MODULE = "fedqssl.studies.bench.throughput"
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.5


@dataclass(frozen=True)
class Candidate:
    """One way to carry out the workload."""

    name: str
    module: str
    processes: int
    bits: int = 32
    python: str = sys.executable


@dataclass
class Figures:
    """What was measured of one process tree between its two lines."""

    updates: int
    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    error: str = ""
    lines: list[str] = field(default_factory=list)


def run(
    iterations: int = 30,
    repeats: int = 1,
    processes: Sequence[int] = (1, 2),
    data: str = "scenes",
    data_dir: Path | None = None,
    pfl: Path | None = None,
    only: Sequence[str] = (),
    say: Callable[[str], object] = print,
) -> Record:
    """Every candidate in turn, ``repeats`` times; medians.

    Args:
        iterations: measured ones, after one that is not.
        repeats: how often everything is measured, in turns.
        processes: of each candidate.
        data: whose images the users hold, 50 each.
        data_dir: where they are.
        pfl: virtual environment of pfl-research, made there if there is none.
        only: names of candidates, by default all.
        say: receives a line per measurement.
    """
    candidates, skipped = _candidates(processes, pfl, only)
    found: dict[Candidate, list[Figures]] = {c: [] for c in candidates}
    with _stored(load_dataset(data, "train", data_dir), load_dataset(data, "test", data_dir)) as (place, users):
        for _ in range(repeats):
            for candidate in [c for c in candidates if c.name not in {s.variant for s in skipped}]:
                figures = _measured(candidate, place, iterations, min(COHORT, users))
                per_cpu = figures.error or f"{figures.updates / figures.cpu:.2f} updates per CPU second"
                say(f"{candidate.name}, {candidate.processes} process(es): {per_cpu}")
                if figures.error:
                    skipped.append(Skipped(candidate.name, figures.error))
                else:
                    found[candidate].append(figures)
    settings = {
        "iterations": iterations,
        "repeats": repeats,
        "users": users,
        "cohort": min(COHORT, users),
        "data": data,
    }
    settings |= {"load": [round(x, 1) for x in os.getloadavg()]}
    return Record("simulation", _rows({c: f for c, f in found.items() if f}), skipped, settings)


def _candidates(
    processes: Sequence[int], pfl: Path | None, only: Sequence[str]
) -> tuple[list[Candidate], list[Skipped]]:
    skipped: list[Skipped] = []
    python: Path | None = None
    if not only or "pfl" in only:
        python, why = _pfl_python(pfl)
        skipped += [Skipped("pfl", why)] if python is None else []
    known = [("bare", "bare", 32, sys.executable), ("fedqssl", "ours", 32, sys.executable)]
    known += [("pfl", "pfl_research", 32, str(python))] if python else []
    known += [("flower on ray", "flower_ray", 32, sys.executable), ("fedqssl, 4 bits", "ours", 4, sys.executable)]
    return [
        Candidate(name, module, count, bits, program)
        for name, module, bits, program in known
        for count in processes
        if not only or name in only
    ], skipped


def _pfl_python(place: Path | None) -> tuple[Path | None, str]:
    """The interpreter of pfl-research's environment, which is made if need be; or why there is none."""
    if place is None:
        return None, f"it needs a virtual environment of its own: --pfl DIR makes one there with pfl {PFL} and torch"
    python = place / "bin" / "python"
    try:
        if not python.exists():
            import torch

            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True, text=True)
            wanted = f"pfl=={PFL}", f"torch=={torch.__version__.partition('+')[0]}"
            command = [str(python), "-m", "pip", "install", "-q", *wanted]
            subprocess.run(command, check=True, capture_output=True, text=True)
        subprocess.run([str(python), "-c", "import pfl, torch"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return None, f"pfl {PFL} cannot be installed in {place} ({said.strip().rpartition(chr(10))[2][:200]})"
    return python.absolute(), ""


@contextmanager
def _stored(train: ImageSet, test: ImageSet) -> Iterator[tuple[str, int]]:
    """The users' images in a file that all candidates read, in a random order, and how many users there are."""
    users = len(train) // IMAGES
    if not users or train.labels is None or test.labels is None or train.images.shape[1:] != (3, 32, 32):
        raise ValueError(f"the workload needs labeled images in colour, {IMAGES} for each user; use cifar10 or scenes")
    order = np.random.default_rng(0).permutation(len(train))[: users * IMAGES]
    with tempfile.TemporaryDirectory(prefix="fedqssl-bench-") as place:
        images, labels = train.images.numpy()[order], train.labels.numpy()[order]
        np.savez(Path(place) / "train.npz", images=images, labels=labels)
        buffer = Path(place) / "buffer"
        buffer.mkdir()
        for folder, name in ((buffer, "train"), (buffer, "test"), (Path(place), "test")):
            np.savez(folder / f"{name}.npz", images=test.images.numpy()[:500], labels=test.labels.numpy()[:500])
        yield place, users


def _measured(candidate: Candidate, place: str, iterations: int, cohort: int) -> Figures:
    module, given = f"{_MODULE}.{candidate.module}", [place, iterations, candidate.processes, candidate.bits]
    start = ["-m", module]
    if candidate.module == "pfl_research" and candidate.processes > 1:
        start = ["-m", "torch.distributed.run", f"--nproc_per_node={candidate.processes}", "--standalone", *start]
    source = str(Path(__file__).parents[3])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, "PFL_PYTORCH_DEVICE": "cpu"}
    found = Figures(iterations * cohort)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [candidate.python, *start, *map(str, given)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        _follow(process, found)
        if process.wait() or not found.seconds:
            errors.seek(0)
            said = [line for line in (*found.lines, *errors.read().splitlines()) if line.strip()]
            found.error = f"its process ended with {process.returncode}: {said[-1][:200] if said else 'no message'}"
    return found


def _follow(process: subprocess.Popen[str], found: Figures) -> None:
    """Note time, CPU time and memory of a process and its descendants between its two lines."""
    began, spent, done = 0.0, 0.0, threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            found.peak = max(found.peak, tree_memory(process.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == BEGIN:
            began, spent = time.monotonic(), _cpu(process.pid)
            watcher.start()
        elif line.strip() == END:
            found.seconds, found.cpu = time.monotonic() - began, _cpu(process.pid) - spent
            done.set()
        else:
            found.lines = [*found.lines[-5:], line]
    done.set()


def _tree(root: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (values := _stat(int(entry.name))):
            parents.setdefault(int(values[1]), []).append(int(entry.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += parents.get(found[-1], [])
    return found


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` after the name: state, parent, ...; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _cpu(root: int) -> float:
    """CPU seconds of a process and its descendants that are still there."""
    values = (_stat(pid) for pid in _tree(root))
    return sum(int(v[11]) + int(v[12]) for v in values if v) / _TICKS


def tree_memory(root: int) -> int:
    """Memory of a process and its descendants in bytes."""
    return sum(map(_pss, _tree(root)))


def _pss(pid: int) -> int:
    """Memory of a process in bytes, shared pages divided among those who share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _rows(found: dict[Candidate, list[Figures]]) -> list[Row]:
    """Medians; CPU time beyond the bare loop of as many processes."""
    cpu = {c: median(1000 * f.cpu / f.updates for f in of) for c, of in found.items()}
    bare = {c.processes: milliseconds for c, milliseconds in cpu.items() if c.module == "bare"}
    return [
        {
            "candidate": c.name,
            "processes": c.processes,
            "updates_per_second": median(f.updates / f.seconds for f in of),
            "updates_per_cpu_second": 1000 / cpu[c],
            "cpu_ms_per_update": cpu[c],
            "cpu_ms_beyond_bare": cpu[c] - bare[c.processes] if c.processes in bare else None,
            "peak_bytes": max(f.peak for f in of),
        }
        for c, of in found.items()
    ]


__all__ = ["Candidate", "Figures", "run", "tree_memory"]
