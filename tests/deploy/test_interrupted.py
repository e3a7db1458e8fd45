"""A fleet that looks after itself: what was interrupted is resumed, what was told to stop is not; who is awaited is said."""

import os
import signal

import pytest

from fedqssl.deploy import control, supervisor
from fedqssl.deploy.fleet import Fleet, only_one
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.status import awaited, collect, headline
from fedqssl.deploy.watching import FleetWatch
from fedqssl.engines.flower.patience import Patience
from fedqssl.files import read_json, write_json
from waiting_runs import only_wait, supervisor_of


@pytest.fixture
def fleet(tmp_path):
    make_fleet(tmp_path / "fleet", None, 9999, ["car-1", "van-3"])
    found = Fleet.open(tmp_path / "fleet")
    (found.runs / "a.toml").write_text("")
    return found


@pytest.fixture
def made(fleet, monkeypatch):
    """Makes supervisors, one after another, whose runs are processes that wait."""
    found = []
    only_wait(monkeypatch)

    def make(**words):
        said = []
        one = supervisor_of(fleet, say=said.append, **words)
        one.said = said
        found.append(one)
        return one

    yield make
    for one in found:
        one._end_run("stopped")


def state(fleet):
    return read_json(fleet.server / "status.json")["state"]


def step(one):
    """What the thread does every second."""
    one._watch()
    one._obey()
    one._resume()


@pytest.mark.parametrize("left", ["starting", "waiting", "running", "interrupted"])
def test_a_restarted_server_resumes_its_run(fleet, made, left):
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": left, "round": 3})
    one = made()
    assert state(fleet) == "interrupted"
    step(one)
    assert state(fleet) == "starting" and one.child is not None
    assert one.said == ["resuming a, which was interrupted (deploy stop ends it; --no-resume leaves it alone)"]
    assert read_json(fleet.server / "status.json")["round"] == 3


@pytest.mark.parametrize("left", ["stopped", "failed", "finished"])
def test_what_ended_by_itself_or_was_stopped_is_not_resumed(fleet, made, left):
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": left})
    one = made()
    step(one)
    assert one.child is None and state(fleet) == left


def test_no_resume_leaves_the_run_alone(fleet, made):
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "running"})
    one = made(resume=False)
    step(one)
    assert one.child is None and state(fleet) == "interrupted"
    assert "resume it with deploy start" in read_json(fleet.server / "status.json")["error"]


def test_a_run_with_its_result_or_without_its_settings_is_not_resumed(fleet, made):
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "running"})
    (fleet.runs / "a").mkdir()
    write_json(fleet.runs / "a" / "result.json", {})
    write_json(fleet.server / "status.json", {"id": "1", "run": "gone", "state": "running"})
    for _ in range(2):
        one = made()
        step(one)
        assert one.child is None
        write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "running"})


def test_a_server_that_is_told_to_stop_resumes_when_it_is_back(fleet, made):
    """As at a reboot; a command to stop the run itself is another matter."""
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "running"})
    one = made()
    step(one)
    one.start()
    one.leave()
    assert state(fleet) == "interrupted"
    two = made()
    step(two)
    assert two.child is not None
    write_json(fleet.server / "wanted.json", {"id": "2", "do": "stop"})
    step(two)
    assert state(fleet) == "stopped" and two.child is None
    three = made()
    step(three)
    assert three.child is None


def test_a_killed_run_is_resumed_a_few_times_unless_it_gets_on(fleet, made):
    write_json(fleet.server / "wanted.json", {"id": "1", "do": "start", "run": "a", "time": 9e9})
    one = made()

    def kill(round_number):
        status = read_json(fleet.server / "status.json")
        write_json(fleet.server / "status.json", {**status, "state": "running", "round": round_number})
        os.kill(one.child.pid, signal.SIGKILL)
        one.child.wait(60)
        step(one)

    step(one)
    for _ in range(supervisor.TRIES):
        kill(0)
        assert one.child is not None and state(fleet) == "starting"
    kill(1)  # a round was finished: counted from the beginning
    for _ in range(supervisor.TRIES - 1):
        kill(1)
        assert one.child is not None
    kill(1)
    assert one.child is None and state(fleet) == "interrupted"
    assert "was killed (signal 9); resume it with deploy start" in read_json(fleet.server / "status.json")["error"]


def test_a_run_that_cannot_be_resumed_has_failed(fleet, made, monkeypatch):
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "running"})
    one = made()

    def full():
        raise OSError("no space left")

    monkeypatch.setattr(one.link, "open_run", full)
    with pytest.raises(OSError):
        step(one)
    assert state(fleet) == "failed" and one.pending is None
    assert read_json(fleet.server / "status.json")["error"] == "it could not be resumed: no space left"


def test_whoever_waits_for_a_run_hears_why_it_ended(fleet):
    told = lambda **status: control.ended("a", {"run": "a", **status}, fleet.path)  # noqa: E731
    assert told(state="failed", error="x") == "a failed: x"
    assert told(state="failed") == "a failed: no error was recorded"
    for state_ in ("running", "interrupted"):
        assert "start the server again, and it resumes the run" in told(state=state_)
    assert control.ended("b", {"run": "a"}, fleet.path).startswith("b ended, and a was started")


def test_waiting_for_a_stopped_run_is_no_error(fleet, monkeypatch):
    from typer.testing import CliRunner

    from fedqssl.cli.main import app

    def take(found, **values):
        write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "stopped"})
        return "1"

    monkeypatch.setattr(control, "_order", take)
    with only_one(fleet.server, "the server"):
        done = CliRunner().invoke(app, ["deploy", "start", str(fleet.path), "--wait"])
    assert done.exit_code == 130 and f"a was stopped; resume it with: fedqssl deploy start {fleet.path}" in done.stdout


def test_following_goes_on_while_the_run_is_being_resumed(fleet, monkeypatch):
    states = [{"state": "interrupted", "resuming": True}, {"state": "starting"}, {"state": "finished"}]
    monkeypatch.setattr(Fleet, "exchanged", lambda self, name: {"run": "a", **states.pop(0)})
    monkeypatch.setattr(Fleet, "serving", lambda self: True)
    monkeypatch.setattr(control.time, "sleep", lambda seconds: None)
    assert control.follow(fleet, "a", print)["state"] == "finished"


class TestWatch:
    @pytest.fixture
    def seen(self, fleet):
        self.now, self.said, self.changed = 1000.0, [], []
        patience = Patience()
        patience.learn({"car-1": 40.0})
        watch = FleetWatch(
            fleet,
            patience,
            lambda names, since: self.changed.append((names, since)),
            self.said.append,
            lambda: self.now,
        )
        watch.what = "round 2"
        watch.begin(["car-1", "van-3"])
        return watch

    def test_who_is_awaited_is_told_when_it_takes_longer_than_usual(self, seen):
        for seconds in range(0, 130, 2):
            self.now = 1000.0 + seconds
            seen.awaited(["van-3"], float(seconds))
        assert self.said == [
            "round 2 is waiting for van-3 (1 of 2 done after 1 min)",
            "round 2 is waiting for van-3 (1 of 2 done after 2 min)",
        ]
        assert self.changed == [(["van-3"], 1000.0)]
        seen.end({"van-3": 129.0})
        assert self.changed[-1] == ([], 0.0) and seen.patience.usual("van-3") == 129.0

    def test_who_joined_anew_is_asked_again_once(self, fleet, seen):
        joins = lambda **counts: write_json(  # noqa: E731
            fleet.server / "nodes.json", {"clients": {name: {"joins": n} for name, n in counts.items()}}
        )
        joins(**{"car-1": 1, "van-3": 2})
        seen.begin(["car-1", "van-3"])
        assert seen.returned() == []
        joins(**{"car-1": 1, "van-3": 3, "bus-9": 7})
        assert seen.returned() == ["van-3"] and seen.returned() == []

    def test_the_evaluation_may_take_an_hour(self, seen):
        assert seen.limit({"van-3": 50.0}) == 300.0
        seen.evaluating = True
        assert seen.limit({}) == 3600.0
        seen.patience.deadline = 5.0
        assert seen.limit({}) == 5.0


def test_status_says_who_is_awaited(fleet, monkeypatch):
    import time

    about = {"run": "a", "state": "running", "round": 1, "rounds": 20, "awaited": ["van-3"]}
    write_json(fleet.server / "status.json", {**about, "awaited_since": time.time() - 90})
    assert headline(collect(fleet)) == "server down; a: interrupted, 1 of 20 rounds done" and not awaited(
        collect(fleet)
    )
    with only_one(fleet.server, "the server"):
        values = collect(fleet)
        assert headline(values) == "server up, 0 of 2 clients connected; a: running, round 2 of 20"
        assert awaited(values).startswith("the round has been waiting for van-3 for 1 min 3")
        write_json(fleet.server / "status.json", {"run": "a", "state": "waiting", "round": 0, "rounds": 20})
        assert headline(collect(fleet)).endswith("a: waiting for clients, 0 of 20 rounds done")
        write_json(fleet.server / "status.json", {"run": "a", "state": "starting"})
        assert headline(collect(fleet)).endswith("; a: starting")
        write_json(fleet.server / "status.json", {})
        assert headline(collect(fleet)).endswith("; no run yet")
