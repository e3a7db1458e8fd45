"""The server's side of a fleet's run without processes: clients come and go between rounds, and a run that broke off goes on."""

import functools
import json
import threading
from types import SimpleNamespace

import pytest
from flwr.app import Message
from flwr.app.error import Error

from client_roles import roles
from direct_grid import DirectGrid
from fedqssl.deploy import control, fleet_run
from fedqssl.deploy.fleet import Fleet, FleetError, ServerData
from fedqssl.deploy.fleet_run import FleetRun
from fedqssl.deploy.keys import read_public_key
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.status import collect
from fedqssl.engines.flower.client import client_app
from fedqssl.engines.flower.wire import QUERY, Capabilities
from fedqssl.files import write_atomically
from fedqssl.runs import RunFolder
from fedqssl.runs.progress import Progress
from flower_pictures import CLIENTS, rounds_in_one_place, words


class FleetGrid(DirectGrid):
    """Nodes with keys; ``online`` says who is connected, ``before`` is called with each message."""

    def __init__(self, fleet, parties):
        self.fleet = fleet
        self.number = {name: 101 + i for i, name in enumerate(sorted(parties))}
        apps = {self.number[n]: client_app(functools.partial(lambda r, c: r, parties[n])) for n in parties}
        super().__init__(apps)
        self.online, self.before = set(parties), lambda message: None

    def get_nodes(self):
        keys = {name: read_public_key(self.fleet.public_keys()[name]) for name in self.online}
        return [SimpleNamespace(node_id=self.number[n], public_key=keys[n]) for n in sorted(self.online)]

    def push_messages(self, messages):
        for message in messages:
            self.before(message)
        return super().push_messages(messages)


class Lines(Progress):
    def __init__(self):
        self.lines = []
        super().__init__(self.lines.append)


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """Without the time that drawing a report takes; ``test_deployment`` has a real one."""
    monkeypatch.setattr(fleet_run, "finished_report", lambda folder: f"the report is {folder / 'report.html'}")
    make_fleet(tmp_path / "fleet", None, 9999, list(CLIENTS))
    return Fleet.open(tmp_path / "fleet")


def wanted(fleet, **changes) -> str:
    text = control.to_toml(control.requested("smoke", words(**changes)))
    write_atomically(fleet.runs / "smoke-1.toml", text.encode())
    return "smoke-1"


def run_of(fleet, grid, pictures, labeled=None):
    return FleetRun(grid, fleet, "smoke-1", ServerData(f"folder:{pictures}/buffer", labeled))


def lines_of(fleet):
    return [json.loads(line) for line in (fleet.runs / "smoke-1" / "metrics.jsonl").read_text().splitlines()]


def rounds_done(message):
    """The round of a training message; None for others."""
    if message.metadata.message_type != "train":
        return None
    return json.loads(message.content["about"]["json"])["order"]["round_number"]


def broken_off(fleet, pictures, tmp_path):
    """A run whose server is killed in its second round."""
    grid = FleetGrid(fleet, roles(pictures, tmp_path))

    def breaks(message):
        if rounds_done(message) == 1:
            raise ConnectionError("the server is killed here")

    grid.before = breaks
    with pytest.raises(ConnectionError):
        run_of(fleet, grid, pictures).play(Lines())


def test_a_run_that_broke_off_goes_on_to_the_same_bytes(fleet, pictures, tmp_path):
    """The buffer may not change meanwhile; without labels there is no global accuracy."""
    wanted(fleet)
    broken_off(fleet, pictures, tmp_path)
    assert collect(fleet)["run"]["error"] == "the server is killed here"
    grid = FleetGrid(fleet, roles(pictures, tmp_path))
    with pytest.raises(FleetError, match="the server's images have changed"):
        FleetRun(grid, fleet, "smoke-1", ServerData(f"folder:{pictures}/car-1")).play(Lines())
    shown = Lines()
    result = run_of(fleet, grid, pictures).play(shown)
    assert shown.lines[0] == "resuming after round 1 of 2" and result.global_accuracy is None
    assert shown.lines[-1] == f"the report is {result.folder / 'report.html'}"
    now, _ = rounds_in_one_place(pictures, 2)
    assert RunFolder(fleet.runs / "smoke-1").latest().payloads == now.payloads
    status = collect(fleet)
    assert (
        status["run"]["state"] == "finished"
        and status["clients"]["car-1"]["bytes_up"] == result.clients["car-1"].bytes_up
    )


def test_clients_join_and_leave_between_rounds(fleet, pictures, tmp_path):
    wanted(fleet, rounds=3, min_clients=1)
    grid, shown = FleetGrid(fleet, roles(pictures, tmp_path)), Lines()
    grid.online = {"car-1", "car-2"}

    def changes(message):
        if rounds_done(message) == 0:
            grid.online.add("van-3")
        if rounds_done(message) == 1:
            grid.online.discard("car-1")

    grid.before = changes
    result = run_of(fleet, grid, pictures).play(shown)
    lines = lines_of(fleet)
    assert [sorted(line["weights"]) for line in lines] == [
        ["car-1", "car-2"],
        ["car-1", "car-2", "van-3"],
        ["car-2", "van-3"],
    ]
    assert lines[2]["rejected"] == {"car-1": "it is not connected"}
    assert "van-3 joins with 32 bits and 40 images" in shown.lines
    assert {n: c.bits for n, c in result.clients.items()} == CLIENTS  # and the files know the van, too
    from fedqssl.config import load_config
    from fedqssl.reporting.data import read_run

    config = load_config(fleet.runs / "smoke-1" / "config.toml")
    assert (config.buffer, config.buffer_images, config.buffer_ratio) == (f"folder:{pictures}/buffer", 40, None)
    assert config.clients == 3 and config.bits_for(sorted(CLIENTS)) == CLIENTS and config.engine == "flower"
    assert read_run(fleet.runs / "smoke-1").bits == CLIENTS


def test_whoever_comes_after_the_last_round_is_too_late(fleet, pictures, tmp_path):
    """A run that was killed in its evaluation ends, whoever is there then; who does not get the final model is named."""
    wanted(fleet, rounds=1, min_clients=1)
    grid = FleetGrid(fleet, roles(pictures, tmp_path))
    grid.online = {"car-1", "car-2"}

    def breaks(message):
        if message.metadata.message_type == "evaluate":
            raise ConnectionError("the server is killed here")

    grid.before = breaks
    with pytest.raises(ConnectionError):
        run_of(fleet, grid, pictures).play(Lines())
    grid, shown = FleetGrid(fleet, roles(pictures, tmp_path)), Lines()
    grid.spoil[grid.number["car-2"]] = lambda reply, message: (
        Message(Error(8, "gone"), reply_to=message) if message.metadata.message_type == "evaluate" else reply
    )
    result = run_of(fleet, grid, pictures).play(shown)
    assert sorted(result.clients) == ["car-1", "car-2"]
    assert "warning: car-2 did not receive its final model: it crashed: gone" in shown.lines


def test_a_run_that_goes_on_waits_for_the_clients_it_had(fleet, pictures, tmp_path):
    """Though one would be enough for a round: without the others the run would go another way."""
    wanted(fleet, min_clients=1)
    broken_off(fleet, pictures, tmp_path)
    grid, shown = FleetGrid(fleet, roles(pictures, tmp_path)), Lines()
    grid.online = {"car-1"}
    waited: list[dict] = []
    stale = fleet.runs / "smoke-1" / "awaited.json"

    def come() -> None:
        waited.append({**collect(fleet)["run"], "stale": stale.exists(), **fleet.exchanged("status.json")["clients"]})
        grid.online.update(CLIENTS)

    write_atomically(stale, b'{"clients": ["car-1"], "since": 1}')
    threading.Timer(2, come).start()
    run_of(fleet, grid, pictures).play(shown)
    assert waited[0]["round"] == 1 and waited[0]["car-1"]["bytes_up"] > 0 and not waited[0]["stale"]
    assert "waiting for clients: 1 of 3 connected; expected back: car-2, van-3" in shown.lines
    assert lines_of(fleet)[1]["rejected"] == {} and len(lines_of(fleet)[1]["weights"]) == 3


def test_one_who_never_answers_does_not_hold_up_every_round(fleet, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_run, "ANSWER", 2.0)
    wanted(fleet, rounds=3, min_clients=2)
    grid = FleetGrid(fleet, roles(pictures, tmp_path))
    grid.spoil[grid.number["van-3"]] = lambda reply, message: None
    run_of(fleet, grid, pictures).play(Lines())
    assert [m.metadata.message_type for m in grid.sent if m.metadata.dst_node_id == grid.number["van-3"]] == [QUERY]


def test_who_is_not_who_its_key_says_stays_out(fleet, pictures, tmp_path):
    """Nor does a client that has other bits than when it joined."""
    wanted(fleet, rounds=1, min_clients=2)
    parties, shown = roles(pictures, tmp_path), Lines()
    parties["van-3"].name = "car-1"
    run_of(fleet, FleetGrid(fleet, parties), pictures).play(shown)
    assert "warning: van-3 cannot take part: it reports the name 'car-1', but its key belongs to 'van-3'" in shown.lines
    assert sorted(lines_of(fleet)[0]["weights"]) == ["car-1", "car-2"]
    assert collect(fleet)["clients"]["van-3"]["refused"].startswith("it reports the name 'car-1'")
    from fedqssl.deploy.roster import refusal

    before = Capabilities("a", 4, 10, 2)
    assert refusal("a", before, before) is None and refusal("a", before, None) is None
    assert "joined this run with 4 bits" in refusal("a", Capabilities("a", 8, 10, 2), before)
    assert "whole numbers" in refusal("a", Capabilities("a", 20, 10, 2), None)
    assert "it has 1 training image; at least 2 are needed" in refusal("a", Capabilities("a", 4, 1, 2), None)


def test_supervised_algorithms_need_numbered_classes(fleet, pictures, tmp_path):
    wanted(fleet, algorithm="fed_avg", rounds=1, min_clients=2)
    grid = FleetGrid(fleet, roles(pictures, tmp_path))
    grid.online = {"car-1", "car-2"}
    with pytest.raises(FleetError, match="start the server with --eval"):
        run_of(fleet, grid, pictures).play(Lines())
    result = run_of(fleet, grid, pictures, f"folder:{pictures}/eval").play(Lines())
    assert 0 <= result.global_accuracy <= 1 and result.clients["car-1"].local_accuracy is not None


def test_features_that_the_network_does_not_have_are_refused_before_clients_are_asked(
    fleet, pictures, tmp_path, monkeypatch
):
    layers = "nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
    (tmp_path / "flat_network.py").write_text(
        f"from torch import nn\ndef flat():\n    return nn.Sequential({layers})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    wanted(fleet, model="flat_network:flat", features="stages")
    grid = FleetGrid(fleet, roles(pictures, tmp_path))
    grid.before = lambda message: pytest.fail("a client was asked")
    with pytest.raises(ValueError, match="'stages' needs a network with 3 sizes of maps, but this one has 1"):
        run_of(fleet, grid, pictures).play(Lines())
    assert "needs a network" in collect(fleet)["run"]["error"]
