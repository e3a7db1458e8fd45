"""Our runs as a Flower app: documented names only, the same bytes as in process, and all state in our own files."""

import ast
import importlib
import json
import sys

import pytest
from flwr.app import Context, Error, Message, RecordDict

from direct_grid import DirectGrid
from fedqssl.cli.main import app as cli_app
from fedqssl.deploy import flower_app
from fedqssl.deploy.fleet import FleetError
from fedqssl.deploy.flower_template import PACKAGE, write_app
from fedqssl.runs.progress import Progress
from flower_pictures import CLIENTS, rounds_in_one_place, words
from test_architecture import graph, modules, statements
from tiny_run import TINY, known_run, model_bytes, silent

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCUMENTED = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
"""The modules of Flower's API reference that we use; others may change with any release."""
TINY_WORDS = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in TINY.items())


def reached(start: str) -> set[str]:
    """Our modules that ``start`` imports, directly or not, inside functions, too."""
    found, left = set(), [start]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += graph().get(module, ())
    return found


def flower_imports(module: str):
    """Flower's modules and names that one of our modules imports."""
    for node in statements(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "flwr")
        elif node.module and node.module.split(".")[0] == "flwr":
            yield from ((node.module, alias.name) for alias in node.names)


def test_the_app_needs_only_what_flower_documents():
    ours = {name for name in reached("fedqssl.deploy.flower_app") if name in modules()}
    assert "fedqssl.engines.flower.exchange" in ours and "fedqssl.deploy.fleet_run" in ours
    found = {(module, *pair) for module in sorted(ours) for pair in flower_imports(module)}
    assert len(found) > 5
    for module, theirs, name in found:
        assert theirs in DOCUMENTED, f"{module} imports {theirs}"
        assert name in importlib.import_module(theirs).__all__, f"{module} imports {name} from {theirs}"


PRIVATE = {
    "connection.py": 8,
    "guard.py": 2,
    "node.py": 3,
    "server_app.py": 4,
    "superlink.py": 6,
}
"""Imports of modules that Flower does not document, by our file: all are named, with reasons, in docs/decisions.md."""


def test_the_list_of_private_names_is_whole_and_does_not_grow():
    text = (modules()["fedqssl.deploy.flower_app"].parents[3] / "docs" / "decisions.md").read_text()
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        for theirs, _ in flower_imports(module):
            if theirs not in DOCUMENTED:
                found.setdefault(path.name, set()).add(theirs)
                assert f"`{theirs}`" in text, f"docs/decisions.md does not say why {module} needs {theirs}"
    assert {name: len(theirs) for name, theirs in found.items()} == PRIVATE


class AppGrid(DirectGrid):
    """Nodes of our ClientApp, each with its own ``--node-config``; ``before`` is called with each message."""

    def __init__(self, nodes, settings):
        app = flower_app.client_app_of_run()
        super().__init__(dict.fromkeys(nodes, app))
        self.nodes, self.settings, self.before = nodes, settings, lambda message: None

    def answer(self, node, message):
        context = Context(
            run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config=self.settings
        )
        return self.apps[node](message, context)

    def push_messages(self, messages):
        for message in messages:
            self.before(message)
        return super().push_messages(messages)


def breaks_in(round_number):
    def before(message):
        order = json.loads(message.content["about"]["json"]).get("order", {})
        if message.metadata.message_type == "train" and order["round_number"] == round_number:
            raise ConnectionError("killed")

    return before


def test_a_simulation_has_the_bytes_of_a_run_in_process_also_after_a_kill(tmp_path):
    settings = {"preset": "smoke", "settings": TINY_WORDS, "out": str(tmp_path / "runs"), "buffer": "", "eval": ""}
    grid = AppGrid({100 + i: {"partition-id": i, "num-partitions": 3} for i in range(3)}, settings)
    grid.before = breaks_in(1)
    with pytest.raises((ConnectionError, ValueError), match="killed"):
        flower_app.play_simulation(grid, settings, Progress(silent))
    grid.before = lambda message: None
    said = []
    result = flower_app.play_simulation(grid, settings, Progress(said.append))
    known = known_run()
    assert result.folder == tmp_path / "runs" / "smoke-1" and any("resuming after round 1 of 2" in x for x in said)
    assert model_bytes(result.folder) == model_bytes(known.folder) != {}
    aggregated = "checkpoints/round-00002/aggregated.fqssl"
    assert (result.folder / aggregated).read_bytes() == (known.folder / aggregated).read_bytes()
    for mine, theirs in zip(*((f / "metrics.jsonl").open() for f in (result.folder, known.folder)), strict=True):
        one, two = json.loads(mine), json.loads(theirs)
        assert [one[k] for k in ("bytes_up", "bytes_down", "client_loss")] == [
            two[k] for k in ("bytes_up", "bytes_down", "client_loss")
        ]


def test_the_number_of_nodes_must_be_that_of_the_clients(tmp_path, monkeypatch):
    settings = {"preset": "smoke", "settings": TINY_WORDS, "out": str(tmp_path)}
    monkeypatch.setattr(flower_app, "START", 0.0)
    grid = AppGrid({100: {"partition-id": 0}}, settings)
    with pytest.raises(ValueError, match=r"1 of 3 clients are there; start it with flwr run .*num-supernodes=3"):
        flower_app.play_simulation(grid, settings, Progress(silent))


def machines(pictures, tmp_path, **settings):
    """Three SuperNodes with their own images, and the app's settings."""
    told = {"preset": "smoke", "settings": " ".join(words()), "out": str(tmp_path / "home")}
    told |= {"buffer": f"folder:{pictures}/buffer", "eval": "", **settings}
    nodes = {
        201 + i: {"name": n, "bits": b, "data": f"folder:{pictures}/{n}", "state": str(tmp_path / n)}
        for i, (n, b) in enumerate(CLIENTS.items())
    }
    return AppGrid(nodes, told)


def test_machines_have_the_bytes_of_one_place_also_after_a_kill(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("fedqssl.deploy.fleet_run.finished_report", lambda folder: "the report is there")
    grid = machines(pictures, tmp_path)
    grid.before = breaks_in(1)
    with pytest.raises(ConnectionError):
        flower_app.play(grid, grid.settings, Progress(silent))
    again = machines(pictures, tmp_path)  # the SuperLink has forgotten everything; so have the clients' processes
    flower_app._own_client.cache_clear()
    said = []
    result = flower_app.play(again, again.settings, Progress(said.append))
    now, _ = rounds_in_one_place(pictures, 2)
    assert model_bytes(result.folder) == now.payloads and "the report is there" in said
    for name in CLIENTS:
        assert (tmp_path / name / "state" / "model.fqssl").read_bytes() == now.payloads[name]


def test_names_are_told_once_and_must_be_names(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("fedqssl.deploy.fleet_run.finished_report", lambda folder: "")
    grid = machines(pictures, tmp_path, settings=" ".join(words(rounds=1, min_clients=2)))
    grid.nodes[203] = {**grid.nodes[202], "state": str(tmp_path / "copy")}
    grid.nodes[204] = {**grid.nodes[202], "name": "../evil"}
    grid.apps[204] = grid.apps[203]
    said = []
    result = flower_app.play(grid, grid.settings, Progress(said.append))
    assert sorted(result.clients) == ["car-1", "car-2"]
    text = "\n".join(said)
    assert "node 203 cannot take part: another node is called car-2, too" in text
    assert "node 204 cannot take part" in text and "evil" not in text


def test_an_error_of_a_client_names_no_file(tmp_path, capsys):
    grid = AppGrid({201: {"name": "car-1", "bits": 4, "data": f"folder:{tmp_path}/secret"}}, {})
    from fedqssl.engines.flower.wire import QUERY, Request, pack

    message = Message(pack(Request("run", "", {})), 201, QUERY)
    message.metadata.__dict__["_message_id"] = "m"
    reply = grid.answer(201, message)
    assert isinstance(reply.error, Error) and "secret" not in reply.error.reason
    assert reply.error.reason == "DataError, see the client's log" and "secret" in capsys.readouterr().err


def test_settings_that_cannot_work_are_said(tmp_path, pictures):
    with pytest.raises(FleetError, match="'out' must be an absolute path"):
        flower_app.play_simulation(None, {"out": "runs"}, Progress(silent))
    grid = machines(pictures, tmp_path)
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "home" / "runs" / "smoke-1.toml").write_text("rounds = 7\n")
    with pytest.raises(FleetError, match="smoke-1 is not finished and has other settings"):
        flower_app.play(grid, grid.settings, Progress(silent))
    node = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(FleetError, match="a SuperNode needs --node-config"):
        flower_app.client_of(node)


def test_the_template_is_an_app(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    done = CliRunner().invoke(cli_app, ["deploy", "flower-app", str(tmp_path / "My App"), "--preset", "smoke"])
    assert done.exit_code == 0, done.exception
    about = tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())
    assert about["project"]["name"] == "my-app" and about["project"]["dependencies"] == []
    app = about["tool"]["flwr"]["app"]
    assert app["config"] == {
        "preset": "smoke",
        "settings": "",
        "out": str(tmp_path / "My App" / "runs"),
        "buffer": "",
        "eval": "",
    }
    assert flower_app.run_config(app["config"]).rounds > 0
    monkeypatch.syspath_prepend(str(tmp_path / "My App"))
    for component, kind in (("serverapp", "ServerApp"), ("clientapp", "ClientApp")):
        module, _, name = app["components"][component].partition(":")
        assert module.startswith(PACKAGE)
        assert type(getattr(importlib.import_module(module), name)).__name__ == kind
    with pytest.raises(FleetError, match="exists and is not empty"):
        write_app(tmp_path / "My App", "smoke", None)
    with pytest.raises(ValueError, match="smok"):
        write_app(tmp_path / "other", "smok", None)
    assert not (tmp_path / "other").exists()
