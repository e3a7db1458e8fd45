"""Run folders without training: what ``fedqssl.studies.paper`` reads of a finished run, with made-up accuracies."""

import json
from pathlib import Path

from fedqssl.config import RunConfig, load_config, to_toml
from fedqssl.data.partition import client_names
from fedqssl.federated.protocol import protocol
from fedqssl.runs import ClientResult, RunResult


def fake_run(folder: Path, config: RunConfig, accuracy: float = 0.5, local: float = 0.7, sha: str = "a") -> RunResult:
    """A finished run with this global and (mean) local accuracy."""
    (folder / "checkpoints").mkdir(parents=True)
    names = client_names(config.clients)
    (folder / "environment.json").write_text(json.dumps({"images_sha256": sha}))
    splits = {name: {"train": list(range(20)), "test": [1]} for name in names}
    (folder / "partition.json").write_text(json.dumps({"buffer": list(range(20)), "clients": splits}))
    (folder / "data.json").write_text(json.dumps({"image": [3, 32, 32], "classes": 10}))
    (folder / "config.toml").write_text(to_toml(config))
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "weights": dict.fromkeys(names, 0.1)}) + "\n")
    clients = {n: ClientResult(b, 20, local, 10, 10) for n, b in zip(names, config.bits, strict=True)}
    who = (config.algorithm, config.data, config.seed, config.rounds)
    result = RunResult(folder, *who, accuracy, local, clients, 1, 1, 1.0, 1.0, 1, protocol(config))
    (folder / "result.json").write_text(result.to_json())
    return result


def smoke(**changes) -> RunConfig:
    return load_config("smoke", changes)
