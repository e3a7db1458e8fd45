"""Flower's simulation on Ray: 4 clients, 2 rounds, smoke size; the same bytes as in process, and nothing left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedqssl import accelerators
from fedqssl.config import load_config
from fedqssl.federated.protocol import protocol
from fedqssl.runs import start

WORDS = ["images=240", "evaluation.knn_every=0", "evaluation.probe_images=60", "workers=1"]
PATIENCE = 900


def members(session: int) -> list[str]:
    """Commands of the processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(command)
    return found


def test_what_ray_reserves_of_gpus(monkeypatch):
    """Ray hides GPUs from clients for whom none is reserved."""
    from fedqssl.engines.flower.simulation import client_gpus

    assert client_gpus(load_config("smoke")) == 0 and client_gpus(load_config("smoke", {"client_gpus": 0.25})) == 0.25
    monkeypatch.setattr(accelerators, "gpus", lambda: 1)
    monkeypatch.setattr(accelerators, "_prepare", lambda index: None)
    assert client_gpus(load_config("smoke", {"device": "cuda", "workers_per_gpu": 4})) == 0.25
    assert client_gpus(load_config("smoke", {"device": "auto", "client_gpus": 1})) == 1
    assert client_gpus(load_config("smoke", {"device": "cuda:0"})) == 1  # the only one
    monkeypatch.setattr(accelerators, "gpus", lambda: 2)
    with pytest.raises(accelerators.DeviceError, match=r"use device=cuda and set CUDA_VISIBLE_DEVICES=1$"):
        client_gpus(load_config("smoke", {"device": "cuda:1"}))


def test_same_bytes_as_in_process_and_nothing_is_left(tmp_path):
    command = [sys.executable, "-m", "fedqssl.cli.main", "run", "smoke", *WORDS, "--engine", "flower-sim"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "ray")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    try:
        here = start(load_config("smoke", WORDS), tmp_path / "here", say=lambda line: None)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0, said
    assert "Traceback" not in said and "global accuracy" in said
    there = json.loads((tmp_path / "ray" / "result.json").read_text())
    for name in here.clients:
        files = [tmp_path / run / "clients" / name / "model.fqssl" for run in ("here", "ray")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert there["global_accuracy"] == here.global_accuracy and there["local_accuracy"] == here.local_accuracy
    assert there["bytes_up"] == here.bytes_up and there["bytes_down"] == here.bytes_down
    assert there["protocol"] == protocol(load_config("smoke", WORDS))  # where it ran does not matter
    lines = [
        [json.loads(x) for x in (tmp_path / r / "metrics.jsonl").read_text().splitlines()] for r in ("here", "ray")
    ]
    for one, two in zip(*lines, strict=True):
        for key in ("client_loss", "dequantize_loss", "weights", "rejected"):
            assert one[key] == two[key], key
    end = time.monotonic() + PATIENCE
    while (left := members(process.pid)) and time.monotonic() < end:
        time.sleep(0.5)
    assert not left
