"""The folder of a fleet: keys that only their owner reads, nothing overwritten, errors in one line; and a client's own disk."""

import os
import pwd
import ssl
import subprocess
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fedqssl.cli.main import app, main
from fedqssl.data.images import ImageSet
from fedqssl.deploy import control
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, ServerData, only_one
from fedqssl.deploy.keys import make_key, read_key, read_public_key
from fedqssl.deploy.metrics import prometheus
from fedqssl.deploy.scaffold import make_fleet, own_key
from fedqssl.deploy.status import collect
from fedqssl.deploy.store import Store, round_key
from fedqssl.federated.client import ClientMetrics
from fedqssl.files import write_json


def said(*words) -> str:
    """The one line of an error; exit code 2."""
    result = CliRunner().invoke(app, list(map(str, words)))
    assert isinstance(result.exception, (ValueError, OSError)), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def fleet(tmp_path):
    make_fleet(tmp_path / "fleet", None, 9999, ["car-1", "car-2"])
    return Fleet.open(tmp_path / "fleet")


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_private_keys_are_private(fleet):
    private = {
        p.name: p.stat().st_mode & 0o777 for p in fleet.path.rglob("*") if p.name in ("key", "server.key", "ca.key")
    }
    assert private == {"key": 0o600, "server.key": 0o600, "ca.key": 0o600}
    assert fleet.server.stat().st_mode & 0o777 == 0o700
    assert len(list(fleet.path.rglob("key"))) == 2


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_private_key_that_others_can_read_is_refused(fleet, mode):
    key = next(fleet.path.glob("clients/*/key"))
    read_key(key)
    key.chmod(mode)
    with pytest.raises(FleetError, match="can be read by other users; run chmod 600"):
        read_key(key)


def test_keys_never_get_into_a_commit(fleet):
    subprocess.run(["git", "init", "-q"], cwd=fleet.path.parent, check=True)
    found = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=fleet.path.parent, capture_output=True, text=True
    )
    assert "key" not in found.stdout, found.stdout


def test_the_certificate_is_for_the_servers_address_and_signed_by_the_fleet(tmp_path):
    from cryptography import x509

    make_fleet(tmp_path / "f", "192.168.1.5", None, [])
    fleet = Fleet.open(tmp_path / "f")
    assert fleet.address == "192.168.1.5:9443"
    authority = x509.load_pem_x509_certificate(fleet.authority.read_bytes())
    found = x509.load_pem_x509_certificate((fleet.server / "server.crt").read_bytes())
    found.verify_directly_issued_by(authority)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n.value) for n in names] == ["localhost", "127.0.0.1", "::1", "192.168.1.5"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fleet.server / "server.crt", fleet.server / "server.key")


def test_nothing_is_overwritten(fleet, tmp_path):
    before = contents(fleet.path)
    assert "nothing was changed" in said("deploy", "init", fleet.path, "--clients", "car-3,car-1")
    assert "to change its address use fedqssl deploy renew" in said("deploy", "init", fleet.path, "--port", "1234")
    assert "add clients with --clients" in said("deploy", "init", fleet.path)
    assert contents(fleet.path) == before
    assert CliRunner().invoke(app, ["deploy", "init", str(fleet.path), "--clients", "car-3"]).exit_code == 0
    listed = fleet.path / "COMMANDS.md"
    assert listed.read_bytes().startswith(before.pop(listed))  # grows, and keeps what its reader has written there
    assert {p: d for p, d in contents(fleet.path).items() if p in before} == before
    assert sorted(fleet.public_keys()) == ["car-1", "car-2", "car-3"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "is not a fleet" in said("deploy", "init", tmp_path / "mine")


def test_an_empty_folder_becomes_a_fleet(tmp_path):
    assert CliRunner().invoke(app, ["deploy", "init", str(tmp_path), "--clients", "car-1"]).exit_code == 0
    assert list(Fleet.open(tmp_path).public_keys()) == ["car-1"]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("server", "clients", "runs")} == {0o700}


def test_added_clients_get_commands_and_units_too(fleet):
    make_fleet(fleet.path, None, None, ["car-3"])
    text = (fleet.path / "COMMANDS.md").read_text()
    for name in ("car-1", "car-2", "car-3"):
        unit = (fleet.path / "systemd" / f"fedqssl-{name}.service").read_text()
        assert text.count(f"--name {name} ") == 1 and f"--name {name} " in unit
        assert f"\nUser={pwd.getpwuid(os.getuid()).pw_name}\n" in unit
    assert text.count("```") % 2 == 0


def test_a_client_without_data_or_with_a_mistyped_name_leaves_no_key(fleet, tmp_path):
    words = "deploy", "client", fleet.path, "--bits", "4", "--name"
    assert "has no client 'car-11'; did you mean 'car-1'?" in said(*words, "car-11", "--data", "scenes")
    (fleet.path / "server" / "server.key").unlink()  # a client's machine does not know who else there is
    assert "no such folder" in said(*words, "bus-1", "--data", f"folder:{tmp_path}/gone")
    assert sorted(p.name for p in (fleet.path / "clients").iterdir()) == ["car-1", "car-2"]


def test_a_server_is_started_again_with_the_images_of_the_last_time(fleet, monkeypatch):
    served, server = [], ["deploy", "server", str(fleet.path)]
    monkeypatch.setattr("fedqssl.deploy.serving.serve", lambda fleet, data, *words: served.append(data))
    assert "--buffer folder:PATH" in said("deploy", "start", fleet.path, "--preset", "smoke")
    write_json(fleet.server / control.LAST, {"buffer": "folder:/a", "labeled": "folder:/b", "on_bad": "skip"})
    assert said("deploy", "start", fleet.path).endswith(f"deploy server {fleet.path}")
    assert CliRunner().invoke(app, server).exit_code == 0
    assert CliRunner().invoke(app, [*server, "--buffer", "scenes"]).exit_code == 0
    (fleet.server / "server.toml").write_text('buffer = "digits"\n')
    assert CliRunner().invoke(app, server).exit_code == 0
    assert served == [
        ServerData("folder:/a", "folder:/b", "skip"),
        ServerData("scenes"),
        ServerData("digits", "folder:/b", "skip"),
    ]


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 80, "a\n"])
def test_names_are_names_of_folders(fleet, name):
    with pytest.raises(FleetError, match="a client's name may contain letters"):
        fleet.client(name)


def test_a_client_can_make_its_own_key(fleet, tmp_path):
    assert own_key(fleet, "bus-1") and not own_key(fleet, "bus-1")
    key = read_key(fleet.client("bus-1") / "key")
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    assert public_key_to_bytes(key.public_key()) == read_public_key(fleet.public_keys()["bus-1"])
    (fleet.client("bus-1") / "key").chmod(0o644)
    with pytest.raises(FleetError, match="can be read by other users; run chmod 600"):
        read_key(fleet.client("bus-1") / "key")
    (fleet.client("car-1") / "key").unlink()
    with pytest.raises(FleetError, match="a public key but no private key"):
        own_key(fleet, "car-1")
    with pytest.raises(FileExistsError):
        make_key(fleet.client("bus-1"), "bus-1")


def test_errors_are_one_line(fleet, tmp_path, capsys):
    gone = tmp_path / "gone"
    assert "make one with fedqssl deploy init" in said("deploy", "status", gone)
    assert "--buffer folder:PATH" in said("deploy", "server", fleet.path)
    assert "no such folder" in said("deploy", "server", fleet.path, "--buffer", f"folder:{gone}")
    assert "--bits and --data" in said("deploy", "client", fleet.path, "--name", "car-1")
    bits = said("deploy", "client", fleet.path, "--name", "car-1", "--bits", "20", "--data", "scenes")
    bursts = said(
        "deploy", "client", fleet.path, "--name", "car-1", "--bits", "4", "--data", "scenes", "--group", "prefix"
    )
    assert bursts == "group = 'prefix' is for folder:PATH; leave it out with data=scenes"
    assert "--bits takes whole numbers from 1 to 16" in bits
    assert "no such folder" in said(
        "deploy", "client", fleet.path, "--name", "car-1", "--bits", "4", "--data", f"folder:{gone}"
    )
    assert "no server is running" in said("deploy", "start", fleet.path, "--preset", "smoke")
    assert "no run is active" in said("deploy", "stop", fleet.path)
    (fleet.client("car-1") / "client.toml").write_text('bitz = "4"\n')
    assert "did you mean 'bits'?" in said("deploy", "client", fleet.path, "--name", "car-1")
    (fleet.client("car-1") / "client.toml").write_text('bits = "4"\n')
    assert "bits takes a number" in said("deploy", "client", fleet.path, "--name", "car-1")
    (fleet.path / "fleet.toml").write_text("address = 3")
    assert "needs a line like address" in said("deploy", "status", fleet.path)
    with pytest.raises(SystemExit) as end:
        main(["deploy", "status", str(gone)])
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_run_on_machines_is_not_a_run_here(tmp_path):
    assert "fedqssl deploy start" in said("run", "smoke", "engine=flower", "--out", tmp_path / "a")


def test_start_goes_on_with_what_is_unfinished(fleet, monkeypatch):
    """The server's side of it is played by the test: it takes every order at once."""
    orders = []

    def take(found, **values):
        orders.append(values)
        write_json(fleet.server / "status.json", {"id": "1", "run": values["run"], "state": "failed"})
        return "1"

    monkeypatch.setattr(control, "_order", take)
    with only_one(fleet.server, "the server"):
        with pytest.raises(FleetError, match="no run to resume"):
            control.start(fleet, None, [])
        assert control.start(fleet, "smoke", ["rounds=3"]) == ("smoke-1", False)
        assert control.start(fleet, None, []) == ("smoke-1", True)
        assert control.start(fleet, "smoke", ["rounds=3"]) == ("smoke-1", True)
        with pytest.raises(FleetError, match="smoke-1 is not finished and has other settings"):
            control.start(fleet, "smoke", ["rounds=4"])
        with pytest.raises(FleetError, match="bits cannot be set on real machines"):
            control.start(fleet, "smoke", ["bits=4"], new=True)
        for word in ("group=prefix", "evaluation.holdout=0"):
            with pytest.raises(FleetError, match="cannot be set on real machines"):
                control.start(fleet, "smoke", [word], new=True)
        with pytest.raises(FleetError, match="real machines have clocks of their own"):
            control.start(fleet, "smoke", ["clock=table.toml"], new=True)
        with pytest.raises(FleetError, match="the buffer is what fedqssl deploy server --buffer names"):
            control.start(fleet, "smoke", ["buffer=scenes"], new=True)
        with pytest.raises(FleetError, match="will be resumed with its own settings"):
            control.start(fleet, None, ["rounds=4"])
        assert control.start(fleet, "smoke", ["rounds=4"], new=True) == ("smoke-2", False)
        write_json(fleet.server / "status.json", {"run": "smoke-2", "state": "running"})
        with pytest.raises(FleetError, match="smoke-2 is running"):
            control.start(fleet, "smoke", [])
        assert control.start(fleet, None, []) == ("smoke-2", True)  # the server has resumed it already
    assert [o["run"] for o in orders] == ["smoke-1", "smoke-1", "smoke-1", "smoke-2"]
    text = (fleet.runs / "smoke-1.toml").read_text()
    assert 'engine = "flower"' in text and 'data = "fleet"' in text and "\nimages" not in text


def test_status_shows_who_and_what(fleet):
    write_json(
        fleet.server / "nodes.json",
        {"clients": {"car-1": {"connected": True, "received": 2048, "sent": 10, "last_seen": 1.0, "message": 0}}},
    )
    about = {"bits": 4, "images": 30, "version": "x", "bytes_up": 1024, "bytes_down": 4096}
    write_json(
        fleet.server / "status.json",
        {
            "run": "smoke-1",
            "state": "running",
            "round": 1,
            "rounds": 2,
            "clients": {"car-1": about},
            "refused": {"car-2": "x"},
        },
    )
    values = collect(fleet)
    assert values["run"]["state"] == "interrupted" and not values["clients"]["car-1"]["connected"]  # no server runs
    with only_one(fleet.server, "the server"):
        values = collect(fleet)
        shown = CliRunner().invoke(app, ["deploy", "status", str(fleet.path)], env={"COLUMNS": "160"}).output
        narrow = CliRunner().invoke(app, ["deploy", "status", str(fleet.path)], env={"COLUMNS": "80"}).output
    assert "connected ┃" in narrow and "…" not in narrow
    assert narrow.splitlines()[0] == "server up, 1 of 2 clients connected; smoke-1: running, round 2 of 2"
    assert values["serving"] and values["clients"]["car-1"] == {
        "connected": True,
        "bits": 4,
        "images": 30,
        "last_seen": 1.0,
        "bytes_up": 1024,
        "bytes_down": 4096,
        "wire_received": 2048,
        "wire_sent": 10,
        "refused": None,
    }
    for word in (
        "server up, 1 of 2 clients connected",
        "smoke-1: running, round 2 of 2",
        "car-1",
        "yes",
        "1 KiB",
        "4 KiB",
        "car-2 cannot take part: x",
    ):
        assert word in shown, shown
    told = prometheus(values).splitlines()
    assert (
        'fedqssl_client_connected{client="car-1"} 1' in told
        and "fedqssl_round 1" in told
        and "fedqssl_running 1" in told
    )


def test_what_a_client_keeps_is_whole_or_not_there(tmp_path, monkeypatch):
    store, metrics = Store(tmp_path), ClientMetrics(3, (0.5, 0.25), 0, 1.5)
    for number in range(4):
        store.keep(round_key("run", number), b"in", b"out%d" % number, metrics)
    assert Store(tmp_path).recall(round_key("run", 3)) == (b"out3", metrics)  # another process
    assert store.recall(round_key("run", 2)) == (b"out2", metrics)
    assert store.recall(round_key("run", 1)) is None and len(list(tmp_path.glob("round-*"))) == 2
    newest = sorted(tmp_path.glob("round-*"))[-1]
    assert (newest / "received.fqssl").read_bytes() == b"in"
    (newest / "sent.fqssl").write_bytes(b"changed")
    assert store.recall(round_key("run", 3)) is None
    monkeypatch.setattr("fedqssl.deploy.store.os.replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        store.keep(round_key("run", 9), b"in", b"out", metrics)
    assert store.recall(round_key("run", 9)) is None and store.recall(round_key("run", 2)) is not None


def test_a_held_out_picture_stays_held_out(tmp_path):
    """More pictures move the border between the splits of a folder; a picture that was tested on must not be trained on."""
    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 3, 4, 4).clone()
    labels = torch.arange(10)
    part = lambda index: ImageSet(images[index], labels[index])  # noqa: E731
    store = Store(tmp_path)
    train, test = store.split(part(slice(0, 6)), part(slice(6, 8)))
    assert train.tolist() == [0, 1, 2, 3, 4, 5] and test.tolist() == [6, 7]
    more = part([0, 1, 2, 3, 4, 5, 7, 8]), part([6, 9])
    train, test = Store(tmp_path).split(*more)
    assert train.tolist() == [0, 1, 2, 3, 4, 5, 7] and test.tolist() == [8, 9, 6]
    client = FleetClient("car-1", 4, *more, Store(tmp_path), Events(tmp_path / "log"))
    assert client.held.labels.tolist() == [0, 1, 2, 3, 4, 5, 8] and client.tested.labels.tolist() == [6, 9, 7]


def test_a_repeated_round_gives_the_same_bytes_after_a_restart(pictures, tmp_path):
    from fedqssl.data.registry import load_dataset
    from fedqssl.engines.flower.wire import Request
    from fedqssl.runs.round import first_checkpoint
    from flower_pictures import in_one_place

    context = in_one_place(pictures)
    payload, order = first_checkpoint(context).payloads["car-1"], context.job(0, 0.3).to_json()
    sets = [load_dataset(f"folder:{pictures}/car-1", s) for s in ("train", "test")]
    role = lambda: FleetClient("car-1", 4, *sets, Store(tmp_path / "state"), Events(tmp_path / "log"))  # noqa: E731
    first = role().train(Request("run", "nonce-1", order), payload)
    assert role().train(Request("run", "nonce-2", order), payload) == first
    assert "round repeated" in (tmp_path / "log").read_text()
    fresh = FleetClient("car-1", 4, *sets, Store(tmp_path / "other"), Events(tmp_path / "log2"))
    assert fresh.train(Request("run", "nonce-3", order), payload)[0] == first[0]  # and so it would without its memory


def test_a_full_disk_is_said(fleet, monkeypatch, tmp_path):
    """At the server's start, and while somebody waits for a run."""
    from fedqssl.deploy.fleet import full
    from fedqssl.deploy.serving import serve

    assert full(fleet.server) == "" and not (fleet.server / ".space").exists()
    with monkeypatch.context() as patch:
        patch.setattr("fedqssl.deploy.fleet.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
        with pytest.raises(FleetError, match=r"server is full \(1000 B are left\); free some space"):
            serve(fleet, ServerData("scenes"), "127.0.0.1", 0, 1 << 20)
        (fleet.runs / "a").mkdir(parents=True, exist_ok=True)
        write_json(fleet.server / "status.json", {"run": "a", "state": "finished"})
        lines: list[str] = []
        assert control.follow(fleet, "a", lines.append)["state"] == "finished"
        assert len(lines) == 1 and "is full (1000 B are left); until there is space" in lines[0]

    def no_space(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedqssl.deploy.fleet.write_atomically", no_space)
    assert full(fleet.server).endswith("cannot be written to (No space left on device)")


def test_a_clients_state_is_its_own(tmp_path):
    (tmp_path / "old").mkdir(mode=0o755)
    for name in ("new", "old"):
        assert Store(tmp_path / name).path.stat().st_mode & 0o777 == 0o700
