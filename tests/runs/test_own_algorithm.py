"""An algorithm of the user's, in one file outside the package, is known everywhere by its import path."""

import json
import textwrap

import pytest

from fedqssl.cli.main import main
from fedqssl.federated.algorithms import AlgorithmError, get_algorithm
from fedqssl.runs import RunFolder
from tiny_run import stopped_after

SOURCE = '''
"""Averages, and counts its rounds in the server's state."""

from fedqssl.federated.algorithms.base import Algorithm, Round
from fedqssl.federated.algorithms.work import RoundWork
from fedqssl.federated.server.aggregate import average


def server(state, arrived, operators):
    w = average(operators.read(arrived.payloads), arrived.shares())
    return {"rounds": state["rounds"] + 1}, Round(w, operators.round_to_bits, weights=arrived.shares())


def work(config, participants):
    return RoundWork(participants, buffer_epochs=7)


COUNTING = Algorithm(
    "counting", "Counting FedAvg", "counts its rounds", server, init=lambda w: {"rounds": 0}, work=work, keeps="update"
)
NOT_ONE = "counting"
'''
NAME = "own_counting:COUNTING"
SMALL = ["images=120", "clients=2", "bits=4,8", "model=small_cnn", "width=4", "batch_size=16", "rounds=3"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "own_counting.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def command(*words) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_it_runs_resumes_and_is_planned_compared_and_reported(here, capsys):
    with stopped_after(2):
        assert command("run", "smoke", f"algorithm={NAME}", *SMALL, "workers=2", "--out", "run") == 130
    settings = here / "run" / "config.toml"
    settings.write_text(settings.read_text().replace("workers = 2", "workers = 1"))
    assert command("run", "--resume", "run") == 0
    assert RunFolder(here / "run").latest().server_state == {"rounds": 3}
    assert command("run", "smoke", f"algorithm={NAME}", *SMALL, "seed=1", "workers=1", "--out", "other") == 0
    capsys.readouterr()
    assert command("compare", "run", "other") == 0
    assert "own_counting:COUNTING" in capsys.readouterr().out
    assert command("report", "run") == 0
    assert "Counting FedAvg" not in (here / "run" / "report.html").read_text()  # its code is not run unasked
    assert command("report", "run", "--trust") == 0
    assert "Counting FedAvg" in (here / "run" / "report.html").read_text()
    assert command("plan", "smoke", f"algorithm={NAME}", *SMALL, "--detail", "--json", "plan.json") == 0
    plan, plain = json.loads((here / "plan.json").read_text()), here / "plain.json"
    assert command("plan", "smoke", "algorithm=fed_simclr", *SMALL, "--json", plain) == 0
    assert plan["work"]["buffer_epochs"] == 7 and plan["server"]["train"] > 0
    kept, usual = (p["clients"]["client-00"]["memory"] for p in (plan, json.loads(plain.read_text())))
    assert kept["total"] > usual["total"]  # it keeps what it received


def test_what_is_not_an_algorithm_is_refused(here):
    for name, why in (
        ("own_counting:NOT_ONE", "is a str, not an Algorithm"),
        ("own_counting:COUNTNG", "did you mean 'COUNTING'"),
        ("no_such_module:X", "cannot import"),
        ("fed_qsll", "did you mean 'fed_qssl'"),
    ):
        with pytest.raises(AlgorithmError, match=why):
            get_algorithm(name)
