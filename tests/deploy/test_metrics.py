"""What Prometheus reads, the dashboard that shows it, and the page for people."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedqssl.deploy.events import KEPT, Events
from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.metrics import HELP, Rounds, exposition, prometheus
from fedqssl.deploy.page import FleetPage, Metrics, PageProcess, RunPage, place
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.status import collect
from fedqssl.files import write_json
from fedqssl.listen import bind
from fedqssl.reporting.live import server
from loopback_page import ask, served
from tiny_run import known_run

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "fleet.json"
SAMPLE = re.compile(r'([a-z_:]+)(\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? (-?[0-9.e+-]+)')


@pytest.fixture
def fleet(tmp_path):
    """A fleet whose run is a copy of a known one, in its last round."""
    make_fleet(tmp_path / "my-fleet", None, 9999, ["car-1", "van-3"])
    found = Fleet.open(tmp_path / "my-fleet")
    shutil.copytree(known_run().folder, found.runs / "smoke-1")
    (found.runs / "smoke-1" / "result.json").unlink()
    about = {"run": "smoke-1", "state": "running", "round": 1, "rounds": 2, "awaited": ["van-3"], "error": None}
    clients = {"car-1": {"bits": 4, "images": 30, "bytes_up": 2048, "bytes_down": 9}}
    write_json(found.server / "status.json", {**about, "clients": clients, "refused": {"van-3": "<b>its clock</b>"}})
    write_json(found.runs / "smoke-1" / "awaited.json", {"clients": ["van-3"], "since": 1.0})
    nodes = {"car-1": {"connected": True, "received": 7, "sent": 8, "last_seen": 1.5, "joins": 1}}
    write_json(found.server / "nodes.json", {"clients": nodes})
    return found


@pytest.fixture
def serving(monkeypatch):
    monkeypatch.setattr(Fleet, "serving", lambda self: True)


def parsed(text: str) -> dict[str, float]:
    """Samples by name and labels; every line must be one of the three kinds of Prometheus' text format, in order."""
    found, known = {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            known = line.split()[2]
            assert len(line.split()) > 3
        elif line.startswith("# TYPE "):
            assert line.split()[2] == known and line.split()[3] in ("gauge", "counter")
        else:
            match = SAMPLE.fullmatch(line)
            assert match and match[1] == known, line
            assert line.rpartition(" ")[0] not in found
            found[line.rpartition(" ")[0]] = float(match[4])
    return found


def test_every_metric_says_what_it_is(fleet, serving):
    lines = [json.loads(line) for line in (fleet.runs / "smoke-1" / "metrics.jsonl").read_text().splitlines()]
    lines[0]["rejected"] = {"van-3": "late", "car-1": "late"}
    values = collect(fleet)
    found = parsed(prometheus(values, lines))
    assert {name.partition("{")[0] for name in found} <= set(HELP)
    assert found["fedqssl_serving"] == found["fedqssl_running"] == 1 and found["fedqssl_round"] == 1
    assert found["fedqssl_loss"] == pytest.approx(lines[-1]["loss"])
    assert found["fedqssl_knn_accuracy"] == pytest.approx([x["knn"] for x in lines if x["knn"] is not None][-1])
    seconds = lines[-1]["server_seconds"] + lines[-1]["clients_wall_seconds"]
    assert found["fedqssl_round_seconds"] == pytest.approx(seconds)
    assert found["fedqssl_rejected_updates"] == 2
    assert found['fedqssl_client_rejected_updates{client="van-3"}'] == 1
    assert found['fedqssl_client_awaited{client="van-3"}'] == 1 and found["fedqssl_clients_awaited"] == 1
    assert found['fedqssl_run_state{state="running"}'] == 1 and found['fedqssl_run_state{state="failed"}'] == 0
    assert found['fedqssl_model_bytes{direction="up"}'] == sum(line["bytes_up"] for line in lines)
    assert "fedqssl_loss" not in parsed(prometheus(values))  # before the first round there is none


def test_names_and_numbers_are_written_as_prometheus_reads_them():
    strange = 'a"b\\c\nd'
    text = exposition([("fedqssl_client_connected", {"client": strange}, 1), ("fedqssl_loss", {}, float("nan"))])
    assert text.splitlines()[2] == 'fedqssl_client_connected{client="a\\"b\\\\c\\nd"} 1' and "fedqssl_loss" not in text


def test_the_dashboard_shows_what_there_is():
    """Grafana itself is not here: that it opens the file was not tried."""
    board = json.loads(DASHBOARD.read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = set(re.findall(r"fedqssl_[a-z_]+", " ".join(shown)))
    assert used <= set(HELP), used - set(HELP)
    wanted = ("loss", "knn_accuracy", "rejected_updates", "round_seconds", "clients_awaited", "client_connected")
    assert {f"fedqssl_{name}" for name in wanted} <= used
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24  # no panel covers another
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    (source,) = board["__inputs"]
    asked = {"type": source["pluginId"], "uid": f"${{{source['name']}}}"}  # what an import replaces by one's own
    plugins = {need["id"] for need in board["__requires"]} | {
        "stat",
        "timeseries",
        "bargauge",
        "state-timeline",
        "table",
    }
    for panel in board["panels"]:
        assert panel["title"] and panel["type"] in plugins and panel["datasource"] == asked
        assert isinstance(panel["fieldConfig"]["defaults"], dict) and isinstance(
            panel["fieldConfig"]["overrides"], list
        )
        names = [target["refId"] for target in panel["targets"]]
        assert names and len(names) == len(set(names))
        for target in panel["targets"]:
            assert all(target["expr"].count(a) == target["expr"].count(b) for a, b in ("()", "{}", "[]"))
    assert board["uid"] and board["schemaVersion"] >= 36 and {"from", "to"} == set(board["time"])


def test_lines_are_read_again_only_when_there_are_more(fleet, monkeypatch):
    rounds = Rounds()
    first = rounds.of(fleet, "smoke-1")
    assert first and rounds.of(fleet, "smoke-1") is first and rounds.of(fleet, "gone") == []
    with (fleet.runs / "smoke-1" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "lo')
    assert rounds.of(fleet, "smoke-1") == first  # half of a line
    (fleet.runs / "other").mkdir()
    (fleet.runs / "other" / "metrics.jsonl").write_text("x")
    assert rounds.of(fleet, "other") == []


def shown(fleet):
    more = {"/run": RunPage(fleet), "/metrics": Metrics(fleet)}
    return served(server(FleetPage(fleet), 0, more, bind("127.0.0.1", 0)))


def test_the_page_of_a_fleet(fleet, serving, monkeypatch):
    with shown(fleet) as port:
        status, page, _ = ask(port, "/")
        assert (
            status == 200
            and "smoke-1: running, round 2 of 2" in page
            and "the round has been waiting for van-3" in page
        )
        assert "&lt;b&gt;its clock" in page and "<b>its clock" not in page  # what a client says is text
        assert '<a href="/run">' in page and "Content-Security-Policy" in page
        status, report, _ = ask(port, "/run")
        assert status == 200 and "Learning curves" in report
        said = r'<p class="lead">Round \d has not received 1 update yet: van-3\.</p>'  # a fact, not an alarm
        assert re.search(said, report) and report.count("has not received") == 1
        assert parsed(ask(port, "/metrics")[1])["fedqssl_round"] == 1
        for path in ("/../server/server.key", "/server/status.json", "/run/"):
            assert ask(port, path)[0] == 404
        assert ask(port, "/", host="evil.example")[0] == 421  # a name that was pointed at this machine
        assert ask(port, "/", method="POST")[0] == 501


def test_a_fleet_without_a_run_has_a_page(tmp_path):
    make_fleet(tmp_path / "new", None, 9999, ["car-1"])
    fleet = Fleet.open(tmp_path / "new")
    assert "no run yet" in FleetPage(fleet).get().decode() or "server down" in FleetPage(fleet).get().decode()
    assert "there is no run yet" in RunPage(fleet).get().decode()


def test_where_the_page_is(fleet):
    assert place("8080") == ("127.0.0.1", 8080) and place("[::]:80") == ("::", 80)
    for text in ("", "x", "host:", "70000", "1.2.3.4:x"):
        with pytest.raises(FleetError, match="--page takes a port, like 8080"):
            place(text)
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(FleetError, match=r"--page \d+ cannot be used"):
            PageProcess(fleet, str(taken.getsockname()[1]))


def test_logs_rotate(tmp_path, monkeypatch):
    """Though several processes write to one."""
    monkeypatch.setattr("fedqssl.deploy.events.LARGEST", 300)
    logs = [Events(tmp_path / "log.jsonl") for _ in range(2)]
    for number in range(100):
        logs[number % 2].note("x", number=number)
    files = {f.name for f in tmp_path.glob("log.jsonl*")}
    assert files == {"log.jsonl", *(f"log.jsonl.{i}" for i in range(1, KEPT + 1))}
    newest_first = ["log.jsonl", *(f"log.jsonl.{i}" for i in range(1, KEPT + 1))]
    lines = [json.loads(x)["number"] for f in reversed(newest_first) for x in (tmp_path / f).read_text().splitlines()]
    assert lines == list(range(lines[0], 100)) and all((tmp_path / f).stat().st_size < 400 for f in files)
