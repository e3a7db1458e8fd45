"""A large fleet beside a small one: what a round costs beside training, and the memory of a whole run with its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedqssl.studies.bench.records import Record, Row
from fedqssl.studies.bench.simulation import tree_memory
from fedqssl.studies.bench.throughput.large_fleet import BITS, COHORT

IMAGES = 50
_EVERY = 0.25


def run(
    clients: Sequence[int] = (100, 10_000),
    rounds: int = 4,
    repeats: int = 1,
    workers: int = 2,
    say: Callable[[str], object] = print,
) -> Record:
    """Each number of clients in turn: fixed costs in one process, then a run that trains, with workers.

    Args:
        clients: multiples of 4, at least 52.
        rounds: the first does not count.
        repeats: of everything, in turns; medians of CPU time and the largest memory.
        workers: of the run that trains.
        say: receives a line per measurement.
    """
    if bad := [n for n in clients if n % len(BITS) or n <= COHORT]:
        raise ValueError(f"fleets need a multiple of {len(BITS)} clients, more than {COHORT}, not {bad[0]}")
    if rounds < 2:
        raise ValueError("the first round does not count, so rounds must be at least 2")
    found: dict[int, list[dict[str, float]]] = {n: [] for n in clients}
    for _ in range(repeats):
        for n in clients:
            found[n].append(_measured(n, rounds, workers))
            say(f"{n:,} clients: {', '.join(f'{k} {v:.3g}' for k, v in found[n][-1].items())}")
    settings = {
        "rounds": rounds,
        "repeats": repeats,
        "workers": workers,
        "load": [round(x, 1) for x in os.getloadavg()],
    }
    return Record("fleet", [_row(n, of) for n, of in found.items()], [], settings)


def _row(clients: int, found: list[dict[str, float]]) -> Row:
    seconds = {key: median(one[key] for one in found) for key in ("start_cpu_seconds", "round_cpu_seconds")}
    return {"clients": clients, **seconds, "peak_bytes": int(max(one["peak_bytes"] for one in found))}


def _measured(clients: int, rounds: int, workers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="fedqssl-bench-") as place:
        _write(Path(place), clients)
        fixed, _ = _process(place, clients, rounds, 1, "fixed")
        _, peak = _process(place, clients, rounds, workers, "training")
    return {
        "start_cpu_seconds": fixed["start"],
        "round_cpu_seconds": median(fixed["rounds"][1:]),
        "peak_bytes": float(peak),
    }


def _write(place: Path, clients: int) -> None:
    """Random images of 8x8, 50 for each client, and some for the server."""
    draws = np.random.default_rng(0)
    for folder, count in ((place, clients * IMAGES), (place / "buffer", 500)):
        folder.mkdir(exist_ok=True)
        for split, size in (("train", count), ("test", 500)):
            images = draws.integers(0, 256, (size, 3, 8, 8), dtype=np.uint8)
            np.savez(folder / f"{split}.npz", images=images, labels=draws.integers(0, 10, size))


def _process(place: str, clients: int, rounds: int, workers: int, what: str) -> tuple[dict[str, Any], int]:
    """What the process said, and the largest memory of it and its workers together."""
    module = "fedqssl.studies.bench.throughput.large_fleet"
    given = [place, clients, rounds, workers, what, f"{place}/{what}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    peak, done = [0], threading.Event()
    command = [sys.executable, "-m", module, *map(str, given)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:

        def watch() -> None:
            while not done.wait(_EVERY):
                peak[0] = max(peak[0], tree_memory(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        said, _ = process.communicate()
        done.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"the run of {clients:,} clients ended with {process.returncode}; its error is above")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found, peak[0]


__all__ = ["run"]
