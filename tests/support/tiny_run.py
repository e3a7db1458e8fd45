"""Runs of seconds that several test modules share; also imported by the processes that the durability tests kill."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path

from fedqssl.config import RunConfig, load_config
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import Context, Simulation, build_simulation
from fedqssl.runs import RunResult, lifecycle, round, start
from fedqssl.runs.folder import Checkpoint
from fedqssl.runs.round import first_checkpoint, play_round

TINY = {
    "model": "small_cnn",
    "width": 4,
    "images": 160,
    "clients": 3,
    "bits": [4, 8, 32],
    "partition": "iid",
    "rounds": 2,
    "batch_size": 16,
    "workers": 1,
    "evaluation.probe_images": 100,
    "evaluation.controls": "none",
}
FOUR = {**TINY, "clients": 4, "bits": [4, 6, 8, 12]}


def tiny(**changes) -> RunConfig:
    return load_config("smoke", {**TINY, **changes})


def tiny_context(**changes) -> Simulation:
    """As build_simulation, but without monitors."""
    return build_simulation(tiny(**{"evaluation.knn_every": 0, **changes}))


def rounds_of(context: Context, count: int = 1, engine_type=InProcess, pool_type=Pool, operators=None):
    """Checkpoint and lines of the first rounds, with whatever carries, works and operates."""
    real = round.ServerOperators
    round.ServerOperators = operators or real
    try:
        with pool_type(context) as pool:
            return played(context, engine_type(pool), pool, count)
    finally:
        round.ServerOperators = real


def known_rounds(count: int = 1, **changes) -> tuple[Checkpoint, list[dict]]:
    """As ``rounds_of(tiny_context(**changes), count)``, but played once per process: only look at what it returns."""
    context = tiny_context(**changes)
    key = count, context.config.model_dump_json()
    if key not in _ROUNDS:
        _ROUNDS[key] = rounds_of(context, count)
    return _ROUNDS[key]


def known_run(**changes) -> RunResult:
    """A finished run of ``tiny(**changes)``, made once per process: only read its folder, or work on a copy."""
    config = tiny(**changes)
    key = config.model_dump_json()
    if key not in _RUNS:
        _RUNS[key] = start(config, Path(_kept().name) / str(len(_RUNS)), say=silent)
    return _RUNS[key]


_ROUNDS: dict[tuple[int, str], tuple[Checkpoint, list[dict]]] = {}
_RUNS: dict[str, RunResult] = {}


@functools.cache
def _kept() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fedqssl-known-runs-")


@contextlib.contextmanager
def stopped_after(rounds: int):
    """A run in this block ends as by Ctrl-C when it has saved so many rounds."""
    real, stopped = lifecycle.play_round, []

    def play(context, engine, pool, before, number, clock=None):
        if number == rounds:
            stopped.append(number)
            raise KeyboardInterrupt
        return real(context, engine, pool, before, number, clock)

    lifecycle.play_round = play
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        lifecycle.play_round = real
    assert stopped, f"no run came to the end of round {rounds}"


def played(context: Context, engine, pool=None, count: int = 2, clock=None):
    """Checkpoint and lines of the first rounds with this engine."""
    checkpoint, lines, pool = first_checkpoint(context), [], pool or Pool(context)
    for number in range(count):
        checkpoint, line = play_round(context, engine, pool, checkpoint, number, clock)
        lines.append(line)
    return checkpoint, lines


def model_bytes(folder: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(folder.glob("clients/*/model.fqssl"))}


def figures(result: RunResult) -> dict[str, object]:
    values = json.loads(result.to_json())
    for timing in ("client_seconds", "server_seconds", "peak_memory_bytes"):
        del values[timing]
    return values


def silent(line: str) -> None:
    pass
