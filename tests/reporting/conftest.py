"""Run folders to report on: a real one of seconds, and made-up ones of any size with real models in their checkpoints."""

import json
import math
import random
from pathlib import Path

import pytest

from fedqssl.config import load_config, to_toml
from fedqssl.data.partition import client_names
from fedqssl.federated.protocol import protocol
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions, to_bytes
from fedqssl.runs import ClientResult, RunFolder, RunResult, start
from fedqssl.runs.folder import Checkpoint, RunTotals, write_atomically

WIDTHS = (4, 6, 8, 12)


def _line(number, names, rounds, draw, rank):
    """A line of metrics.jsonl that looks like a run's."""
    base = 2.5 + 2.2 * math.exp(-4 * number / rounds)
    losses = {n: base + draw.gauss(0, 0.08) for n in names}
    total = sum(math.exp(-v) for v in losses.values())
    return {
        "round": number,
        "lr": 0.3,
        "loss": sum(losses.values()) / len(losses),
        "client_loss": {n: [v + 0.2, v] for n, v in losses.items()},
        "skipped_steps": 0,
        "dequantize_loss": losses,
        "weights": {n: math.exp(-v) / total for n, v in losses.items()},
        "rejected": {},
        "bytes_up": 50_000 * len(names),
        "bytes_down": 50_000 * len(names),
        "client_seconds": 1.5,
        "server_seconds": 2.5,
        "knn": 0.2 + 0.5 * number / rounds + draw.gauss(0, 0.01),
        "untrained_knn": 0.25,
        "collapse": {"alignment": 0.2, "uniformity": -1.0 - number / rounds, "effective_rank": rank, "dim": 64},
    }


def fabricate(path: Path, *, clients=10, rounds=10, classes=10, done=None, rank=20.0, names=None, **settings) -> Path:
    """A run's folder without a run; ``done`` fewer rounds than ``rounds`` leaves it unfinished."""
    draw = random.Random(0)
    bits = [WIDTHS[i * len(WIDTHS) // clients] for i in range(clients)]
    words = {"model": "small_cnn", "width": 8, "rounds": rounds, "clients": clients, "bits": bits, **settings}
    config = load_config("smoke", words)
    names = names or client_names(clients)
    of, done = dict(zip(names, config.bits, strict=True)), rounds if done is None else done
    labels = {}
    for name in names:
        shares = [draw.gammavariate(0.15, 1) + 1e-9 for _ in range(classes)]
        size = draw.randint(60, 900)
        counts = [round(size * s / sum(shares)) for s in shares]
        counts[0] += 8
        labels[name] = {"train": counts, "test": [math.ceil(c / 4) for c in counts]}
    folder = RunFolder.create(path, False)
    partition = {n: {part: list(range(sum(c[part]))) for part in ("train", "test")} for n, c in labels.items()}
    folder.write("partition.json", json.dumps({"buffer": list(range(500)), "clients": partition}))
    described = {"image": [3, 32, 32], "classes": classes, "class_names": None, "labels": labels}
    folder.write("data.json", json.dumps(described))
    folder.write("environment.json", json.dumps({"fedqssl": "0.1.0", "torch": "2", "kernels": {"backend": "native"}}))
    folder.write("config.toml", to_toml(config))
    for number in range(1, done + 1):
        folder.append_metrics(_line(number, names, rounds, draw, rank))
    if done:
        _save(folder, config, of, done)
    if done == rounds:
        _finish(folder, config, of, labels, draw)
    return path


def _save(folder, config, of, done):
    task = Task(config.model, config.width, 3, "simclr", 0.5, 32, 0, LowBitOptions(), 10)
    made = {b: to_bytes(task.converted(b)) for b in {*of.values(), 32}}
    folder.save(Checkpoint(done, {n: made[b] for n, b in of.items()}, made[32], RunTotals()))


def _finish(folder, config, of, labels, draw):
    found = {}
    for name, b in of.items():
        accuracy = min(1.0, max(0.0, draw.gauss(0.45 + 0.02 * b, 0.12)))
        controls = _controls(draw, draw.gauss(0.4, 0.1))
        found[name] = ClientResult(b, sum(labels[name]["train"]), accuracy, 60_000 * b, 60_000 * b, controls)
        (folder.path / "clients" / name).mkdir(parents=True)
        write_atomically(folder.path / "clients" / name / "model.fqssl", b"x")
    local = sum(c.local_accuracy for c in found.values()) / len(found)
    sums = sum(c.bytes_up for c in found.values())
    values = (
        config.algorithm,
        config.data,
        config.seed,
        config.rounds,
        0.61,
        local,
        found,
        sums,
        sums,
        10.0,
        20.0,
        10**8,
    )
    result = RunResult(folder.path, *values, protocol(config), _controls(draw, 0.42), 2000, 0.2)
    folder.write("result.json", result.to_json())


def _controls(draw, centre):
    shares = {n: min(1.0, max(0.0, centre + draw.gauss(0, 0.05))) for n in ("commonest", "pixels", "hog", "untrained")}
    return {"chance": 0.1, **shares}


def _without_controls(path: Path) -> Path:
    """As an older version left a run."""
    values = json.loads((path / "result.json").read_text())
    for part in (values, *values["clients"].values()):
        part["controls"] = None
    (path / "result.json").write_text(json.dumps(values))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps({**v, 'untrained_knn': None})}\n" for v in lines))
    return path


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Makes run folders."""
    return lambda name="run", **words: fabricate(tmp_path_factory.mktemp("made") / name, **words)


@pytest.fixture(scope="session")
def older(made):
    """Makes run folders as an older version did, without controls."""
    return lambda **words: _without_controls(made(**words))


@pytest.fixture(scope="session")
def real(tmp_path_factory) -> Path:
    """The folder of a real run."""
    config = load_config(
        "smoke",
        {"model": "small_cnn", "width": 4, "images": 200, "batch_size": 16, "workers": 1, "evaluation.controls": "all"},
    )
    return start(config, tmp_path_factory.mktemp("real") / "run", say=lambda line: None).folder
