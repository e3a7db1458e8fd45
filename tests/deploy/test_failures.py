"""Processes that fail: each costs its own update, by name and with a reason; a killed server goes on to the same bytes."""

import json
import os
import signal
import time

import pytest

from fedqssl.deploy.fleet import FleetError
from fedqssl.deploy.status import collect
from fleet_processes import Processes, until
from flower_pictures import CLIENTS, in_one_place, words
from tiny_run import rounds_of

pytestmark = pytest.mark.slow


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in open(f"/proc/{pid}/status").read()


@pytest.fixture
def processes(tmp_path, pictures):
    with Processes(tmp_path, pictures, CLIENTS) as found:
        yield found


def begun(processes, van: str, **settings) -> str:
    """A run of two cars and a van that does not behave."""
    processes.server()
    processes.client("car-1", 4)
    processes.client("car-2", 8)
    processes.strange("van-3", 32, van)
    processes.connected(*CLIENTS)
    return processes.start("--preset", "smoke", *words(**settings))


def test_a_client_killed_in_a_round_is_left_out_and_comes_back(processes):
    name = begun(processes, "slow:1000", rounds=30, min_clients=2, deadline=150)
    until(lambda: "asleep" in processes.said("van-3"), "round 2 has begun")
    processes.end("van-3", signal.SIGKILL)
    until(lambda: len(lines_of(processes.fleet.runs / name)) == 2, "round 2 goes on without it")
    processes.client("van-3", 32)
    lines = lines_of(processes.finished(name))
    assert lines[0]["rejected"] == {} and len(lines[0]["weights"]) == 3
    assert list(lines[1]["rejected"]) == ["van-3"]
    assert sorted(lines[1]["weights"]) == ["car-1", "car-2"] and sum(lines[1]["weights"].values()) == pytest.approx(1)
    assert lines[-1]["rejected"] == {} and len(lines[-1]["weights"]) == 3
    assert "warning: the update of van-3 was not used" in (processes.fleet.runs / name / "log.txt").read_text()
    assert "van-3" in report(processes.fleet.runs / name)


def report(run) -> str:
    from fedqssl.reporting.page import write_report

    return write_report(run, run / "report.html").read_text()


def pid_of_run(processes) -> int:
    events = [json.loads(line) for line in (processes.fleet.server / "log.jsonl").read_text().splitlines()]
    return [e["pid"] for e in events if e["event"] == "run started"][-1]


def check_same_bytes(run, pictures):
    now, _ = rounds_of(in_one_place(pictures, rounds=3), 3)
    for client in CLIENTS:
        assert (run / "clients" / client / "model.fqssl").read_bytes() == now.payloads[client]
    assert (run / "checkpoints" / "round-00003" / "aggregated.fqssl").read_bytes() == now.aggregated


def test_server_and_clients_killed_in_a_round_resume_by_themselves_to_the_same_bytes(processes, pictures):
    """Nobody types ``deploy start`` again; the server needs none of its options, either."""
    name = begun(processes, "slow:40", rounds=3)
    until(lambda: "asleep" in processes.said("van-3"), "round 2 has begun")
    done = '"event": "round done", "round": 2'
    until(lambda: done in (processes.fleet.client("car-1") / "log.jsonl").read_text(), "car-1 has done it")
    child = pid_of_run(processes)
    processes.end("server", signal.SIGKILL)
    processes.end("car-1", signal.SIGKILL)
    until(lambda: not alive(child), "the run's process ends with the server")
    assert isinstance(processes.command("start", processes.fleet.path).exception, FleetError)
    began = time.time()
    processes.launch("server", "-m", "fedqssl.cli.main", "deploy", "server", processes.fleet.path)
    processes.client("car-1", 4)
    until(lambda: processes.obeying(began), "the server serves again")
    until(lambda: processes.state() != "interrupted", "the run is resumed")
    run = processes.finished(name)
    check_same_bytes(run, pictures)
    assert f"resuming {name}" in processes.said("server") and "the report is" in processes.said("server")
    assert (run / "report.html").exists() and not (run / "awaited.json").exists()
    repeated = (processes.fleet.client("car-1") / "log.jsonl").read_text()
    assert "round repeated" in repeated  # the round in flight was done once, and answered twice


def test_clients_and_the_run_killed_in_a_round_come_back_to_the_same_bytes(processes, pictures):
    """The server lives: a killed client is noticed within its heartbeat's 20 seconds, and is asked again when it is back."""
    name = begun(processes, "slow:1000", rounds=3)
    until(lambda: "asleep" in processes.said("van-3"), "round 2 has begun")
    until(lambda: collect(processes.fleet)["run"]["awaited"] == ["van-3"], "the status says who is awaited")
    processes.end("van-3", signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not collect(processes.fleet)["clients"]["van-3"]["connected"], "the server notices")
    assert time.monotonic() - killed < 30  # 20, and the time of a busy machine
    processes.client("van-3", 32)
    until(lambda: len(lines_of(processes.fleet.runs / name)) == 2, "round 2 is done")
    os.kill(pid_of_run(processes), signal.SIGKILL)
    run = processes.finished(name)
    check_same_bytes(run, pictures)
    assert all(line["rejected"] == {} for line in lines_of(run))


def test_stop_and_start(processes):
    processes.server()
    for client, bits in CLIENTS.items():
        processes.client(client, bits)
    processes.connected(*CLIENTS)
    name = processes.start("--preset", "smoke", *words(rounds=50))
    until(lambda: (processes.fleet.runs / name / "metrics.jsonl").exists(), "round 1 is done")
    done = processes.command("stop", processes.fleet.path)
    assert done.exit_code == 0 and f"stopped {name}" in done.stdout, done.exception
    assert processes.state() == "stopped"
    assert processes.start() == name
    until(lambda: processes.state() == "running", "it goes on")


@pytest.mark.parametrize(
    "strange", [{"car-1": "gigabyte", "car-2": "raise"}, {"car-1": "truncated", "car-2": "replay"}]
)
def test_what_a_bad_client_sends_costs_its_own_update(processes, strange):
    """The van is honest, and the run ends well."""
    processes.server("--max-mib", "32")
    for client, how in strange.items():
        processes.strange(client, CLIENTS[client], how)
    processes.client("van-3", 32)
    processes.connected(*CLIENTS)
    name = processes.start("--preset", "smoke", *words(min_clients=1, deadline=120))
    lines = lines_of(processes.finished(name))
    assert all("van-3" in line["weights"] for line in lines)
    last = lines[-1]["rejected"]
    assert sorted(last) == ["car-1", "car-2"], lines
    if "gigabyte" in strange.values():
        assert "arrive" in last["car-1"] or "no reply" in last["car-1"]
        assert last["car-2"] == "it raised an error: RuntimeError, see the client's log"
        refused = (processes.fleet.server / "log.jsonl").read_text()
        assert '"client": "car-1"' in refused and "its message would unfold to more than 33554432 bytes" in refused
        assert "holiday" not in (processes.fleet.runs / name / "metrics.jsonl").read_text()
    else:
        assert "truncated" in last["car-1"] and "perhaps replayed" in last["car-2"]
        assert "car-2" in lines[0]["weights"]


def test_a_slow_client_is_not_waited_for(processes):
    name = begun(processes, "slowly:1000", rounds=1, min_clients=2, deadline=120)
    (line,) = lines_of(processes.finished(name))
    assert line["rejected"] == {"van-3": "no reply within 120 s"} and sorted(line["weights"]) == ["car-1", "car-2"]
