"""``fedqssl plan``: what it prints and refuses."""

import json

import pytest
from typer.testing import CliRunner

from fedqssl.cli import plan
from fedqssl.cli.main import app, main

runner = CliRunner()
OWN = """
from fedqssl.federated.algorithms import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average
from fedqssl.federated.algorithms.work import RoundWork

OWN = Algorithm(
    "own", "Own", "for a test", plain_average,
    upload=lambda model, bits: bytes(1234),
    work=lambda config, participants: RoundWork(participants, buffer_epochs=3),
)
"""
SMALL = ["plan", "smoke", "model=small_cnn", "width=4", "images=200"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(plan, "MEASURE_SECONDS", 0.5)


def run(*words: str, columns: int = 80) -> str:
    result = runner.invoke(app, words, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    # A path stays on one line however long it is, so that it can be copied.
    wide = [line for line in result.stdout.splitlines() if len(line.rstrip()) > columns]
    assert not [line for line in wide if not any(word in line for word in words if "/" in word)]
    assert "…" not in result.stdout
    return result.stdout


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    return error


def test_a_plan_with_progress():
    result = runner.invoke(app, SMALL, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    for word in (
        "4 clients",
        "2 rounds",
        "model bytes",
        "bytes up",
        "time in all",
        "client-03",
        "KiB",
        "evaluation is not",
    ):
        assert word in result.stdout
    assert "plan: 12 bits: timing a step" in result.stderr
    assert "assumed" not in result.stdout and "Bit operations" not in result.stdout


def test_the_ledger_with_devices_and_json(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text('[default]\nuplink = "1 Mbit/s"\nmemory = "1 KiB"\n[clients.client-02]\nuplink = "9 kbit/s"\n')
    path = tmp_path / "ledger.json"
    out = run(*SMALL, "--detail", "--devices", str(devices), "--json", str(path))
    for title in (
        "Bit operations",
        "Memory of a training step",
        "Formula against",
        "The server's round",
        "on the devices",
    ):
        assert title in out
    assert "straggler: client-02" in out and "too little memory on client-00" in out
    assert json.loads(path.read_text())["clients"]["client-02"]["bits"] == 8
    run(*SMALL, "--detail", columns=120)


def test_without_the_data(monkeypatch, tmp_path):
    monkeypatch.setattr("fedqssl.cost.sizes.cache_folder", lambda: tmp_path)
    out = run("plan", "cifar10-paper", "model=small_cnn", "width=4", "--no-measure")
    flat = " ".join(out.split())
    assert "cifar10 is not on this machine: 50,000 images assumed, split evenly" in flat
    assert "3,600" in out and "time in all" not in out


def test_a_scaled_batch_is_said(monkeypatch):
    monkeypatch.setattr(plan, "MEASURE_SECONDS", 0.001)
    flat = " ".join(run(*SMALL, "batch_size=64", "bits=4").split())
    assert "10 images were timed and scaled to 64" in flat


@pytest.mark.parametrize("algorithm", ["fed_simclr", "local_only", "server_only", "fed_prox"])
def test_other_algorithms(algorithm):
    assert algorithm in run(*SMALL, f"algorithm={algorithm}", "--detail", "--no-measure")


def test_an_algorithm_of_ones_own(monkeypatch, tmp_path):
    """Named by import path: the plan counts what it sends and what its server does."""
    (tmp_path / "my_algorithm.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ledger.json"
    words = (*SMALL, "algorithm=my_algorithm:OWN", "--no-measure", "--target-bytes", "1 MB")
    out = run(*words, "--detail", "--json", str(path))
    assert "my_algorithm:OWN" in out and "train one model" in out and out.splitlines()[-2].startswith("bits=")
    costs = json.loads(path.read_text())
    assert {client["bytes_up"] for client in costs["clients"].values()} == {1234}
    assert costs["work"]["buffer_epochs"] == 3 and costs["server"]["train"] > 0


def test_bad_input(capsys, tmp_path):
    assert "did you mean 'quickstart'" in fails(capsys, "plan", "quickstrt")
    assert "unknown setting" in fails(capsys, "plan", "smoke", "ronds=3")
    assert "unknown algorithm" in fails(capsys, "plan", "smoke", "algorithm=nope")
    assert "cannot import 'no_such_module'" in fails(capsys, "plan", "smoke", "algorithm=no_such_module:A")
    assert "no such file" in fails(capsys, "plan", "smoke", "--devices", str(tmp_path / "no.toml"))
    assert "is a folder" in fails(capsys, "plan", "smoke", "--json", str(tmp_path))
    (tmp_path / "d.toml").write_text("[clients.client-77]\nmemory = 1\n")
    assert "no such client" in fails(capsys, "plan", "smoke", "--devices", str(tmp_path / "d.toml"))


def test_the_steps_of_the_final_model():
    flat = " ".join(run(*SMALL, "--no-measure", "local_steps=40", "server.steps=100", "rounds=3").split())
    each = 3 * (40 + 100 // 4 + 1)  # a quarter for each model, and an epoch of re-quantization: the buffer is one batch
    assert f"made of {each} training steps, one after another: 3 x (40 on a client + 26 on the server)" in flat
    assert "3 rounds of 40 steps" in flat
    alone = " ".join(run(*SMALL, "--no-measure", "algorithm=server_only", "server.steps=100").split())
    assert "2 x (0 on a client + 101 on the server)" in alone
