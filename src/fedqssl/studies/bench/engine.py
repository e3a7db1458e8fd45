"""The overhead of a round: CPU time outside training, evaluation and packing; and the gain from a second worker."""

from __future__ import annotations

import functools
import pkgutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median_high
from typing import Any
from unittest import mock

from fedqssl.config import RunConfig
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import Simulation, build_simulation
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.round import first_checkpoint, learning_rate, play_round
from fedqssl.studies.bench.records import Record, settings_of, value_rows

WORK = {
    "training": [
        *(f"fedqssl.federated.{m}.train_steps" for m in ("client", "server.fine_tune")),
        "fedqssl.federated.server.requantize.train_epoch",
    ],
    "evaluation": ["fedqssl.runs.round.knn_monitor", "fedqssl.runs.round.collapse_monitor"],
    "packing": [
        *(f"fedqssl.federated.{m}.load_bytes" for m in ("client", "state", "server.validate")),
        *(f"fedqssl.federated.{m}.to_bytes" for m in ("client", "server.requantize", "server.validate")),
        "fedqssl.runs.round.to_bytes",
    ],
}


@contextmanager
def _counted(spent: dict[str, float]) -> Iterator[None]:
    """Add the CPU seconds of every function in ``WORK`` to its kind."""

    def counting(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                spent[kind] += time.process_time() - began

        return call

    with ExitStack() as stack:
        for kind, names in WORK.items():
            for name in names:
                stack.enter_context(mock.patch(name, counting(kind, pkgutil.resolve_name(name))))
        yield


def overhead(context: Simulation, rounds: int) -> dict[str, float]:
    """CPU seconds of ``rounds`` rounds by kind of work, in one process, including checkpoints, after one warm-up round."""
    spent = dict.fromkeys(WORK, 0.0)
    with tempfile.TemporaryDirectory() as place, Pool(context) as pool:
        engine = InProcess(pool)
        folder = RunFolder.create(Path(place) / "run", overwrite=False)
        checkpoint, _ = play_round(context, engine, pool, first_checkpoint(context), 0)
        began = time.process_time()
        with _counted(spent):
            for number in range(1, rounds + 1):
                checkpoint, line = play_round(context, engine, pool, checkpoint, min(number, context.config.rounds - 1))
                folder.append_metrics(line)
                folder.save(checkpoint)
        total = time.process_time() - began
    return {**spent, "other": total - sum(spent.values()), "total": total}


def throughput(one: Simulation, two: Simulation, repeats: int) -> list[tuple[float, float]]:
    """Wall seconds of a round's client training with one and with two workers, interleaved."""
    found = []
    with Pool(one, 1) as single, Pool(two, 2) as double:
        payloads, rate = first_checkpoint(one).payloads, learning_rate(one.config, 0)
        engines = InProcess(single), InProcess(double)
        for engine in engines:
            engine.train_clients(payloads, one.job(0, rate))
        for number in range(repeats):
            seconds = []
            for engine in engines:
                began = time.monotonic()
                engine.train_clients(payloads, one.job(number, rate))
                seconds.append(time.monotonic() - began)
            found.append((seconds[0], seconds[1]))
    return found


def run(config: RunConfig, rounds: int = 2, repeats: int = 3) -> Record:
    """Both measurements for a configuration."""
    one = build_simulation(config.model_copy(update={"workers": 1}))
    two = build_simulation(config.model_copy(update={"workers": 2}))
    spent = overhead(one, rounds)
    found = {f"CPU share of {kind}": seconds / spent["total"] for kind, seconds in spent.items()}
    gain = median_high(a / b for a, b in throughput(one, two, repeats))
    found["throughput of two workers / one (wall, median)"] = gain
    settings = {"rounds": rounds, "repeats": repeats, "cpu_seconds_a_round": round(spent["total"] / rounds, 2)}
    settings |= settings_of(config, "model", "width", "clients", "data")
    return Record("engine", value_rows(found), settings=settings)
