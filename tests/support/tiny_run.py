"""Runs of seconds that several test modules share; also imported by the processes that the durability tests kill."""

import functools
import json
from pathlib import Path

from fedqssl.config import RunConfig, load_config
from fedqssl.data.registry import load_dataset
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated import context as contexts
from fedqssl.federated.context import Context, Simulation, build_simulation
from fedqssl.runs import RunResult, round
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


def tiny(**changes) -> RunConfig:
    return load_config("smoke", {**TINY, **changes})


@functools.cache
def _scenes(split):
    return load_dataset("scenes", split)


def tiny_context(**changes) -> Simulation:
    """As build_simulation, but without monitors, and the embedded images are drawn once for all tests."""
    real = contexts.load_split
    contexts.load_split = lambda config, split, *rest: _scenes(split)
    try:
        return build_simulation(tiny(**{"evaluation.knn_every": 0, **changes}))
    finally:
        contexts.load_split = real


def rounds_of(context: Context, count: int = 1, engine_type=InProcess, pool_type=Pool, operators=None):
    """Checkpoint and lines of the first rounds, with whatever carries, works and operates."""
    real = round.ServerOperators
    round.ServerOperators = operators or real
    try:
        with pool_type(context) as pool:
            return played(context, engine_type(pool), pool, count)
    finally:
        round.ServerOperators = real


def played(context: Context, engine, pool=None, count: int = 2):
    """Checkpoint and lines of the first rounds with this engine."""
    checkpoint, lines, pool = first_checkpoint(context), [], pool or Pool(context)
    for number in range(count):
        checkpoint, line = play_round(context, engine, pool, checkpoint, number)
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
