"""One run over TLS with three clients of different bits: the same bytes as in one place, and nothing of the data in any."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from fedqssl.data.registry import load_dataset
from fedqssl.deploy.scaffold import own_key
from fedqssl.deploy.status import collect
from fleet_processes import PATIENCE, Processes, until
from flower_pictures import CLIENTS, rounds_in_one_place, words
from recording_proxy import RecordingProxy


def page(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=60) as reply:
            return reply.read().decode()
    except urllib.error.URLError:
        return ""


class Deployment:
    """What the run left behind."""

    def __init__(self, folder, pictures) -> None:
        with Processes(folder, pictures, CLIENTS) as processes, RecordingProxy(processes.fleet) as proxy:
            self.fleet = processes.fleet
            own_key(processes.fleet, "stranger")
            (processes.fleet.client("stranger") / "key.pub").rename(folder / "stranger.pub")  # the server never sees it
            processes.server("--eval", f"folder:{pictures}/eval", "--page", "0")
            for name, bits in CLIENTS.items():
                processes.client(name, bits, "--server", proxy.address)
            words_ = "--name", "stranger", "--bits", "4", "--data", f"folder:{pictures}/car-1"
            processes.launch("stranger", "-m", "fedqssl.cli.main", "deploy", "client", processes.fleet.path, *words_)
            processes.connected(*CLIENTS)
            self.name = processes.start("--preset", "smoke", *words())
            self.run = processes.finished(self.name)
            self.stranger = processes.running.pop("stranger").wait(PATIENCE), processes.said("stranger")
            until(lambda: collect(self.fleet)["clients"]["car-1"]["last_seen"], "the status is written")
            self.status = collect(self.fleet)
            where = re.search(r"the fleet's page is (http://127.0.0.1:\d+);", processes.said("server"))[1]
            until(lambda: page(f"{where}/"), "the page is there")
            self.pages = {path: page(where + path) for path in ("/", "/run", "/metrics")}
            self.shown = processes.command("status", processes.fleet.path).stdout
            self.ends = {name: processes.end(name) for name in [*CLIENTS, "server"]}
            self.said = {name: processes.said(name) for name in [*CLIENTS, "server"]}
            self.sent, self.received = proxy.sent, proxy.received


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, pictures):
    return Deployment(tmp_path_factory.mktemp("deployment"), pictures)


def test_ctrl_c_stops_the_run_and_a_start_without_options_resumes_it(tmp_path, pictures):
    """Sent as a terminal does, to all processes of its group; the run waits for clients, of which there are none."""
    began = time.time()
    with Processes(tmp_path, pictures, CLIENTS) as processes:
        words_ = "deploy", "server", processes.fleet.path, "--buffer", f"folder:{pictures}/buffer"
        with (tmp_path / "group.out").open("w") as out:
            command = [sys.executable, "-m", "fedqssl.cli.main", *map(str, words_)]
            group = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            until(lambda: group.poll() is None and processes.obeying(began), "the server serves")
            done = processes.command("start", processes.fleet.path, "--preset", "smoke", *words())
            assert done.exit_code == 0, f"{done.exception} {processes.said('group')}"
            name = done.stdout.split()[1]
            until(lambda: processes.state() == "waiting", "the run has begun")
        finally:
            os.killpg(group.pid, signal.SIGINT)
        assert group.wait(PATIENCE) == 0
        assert processes.state() == "interrupted" and "Traceback" not in processes.said("group"), processes.said(
            "group"
        )
        began = time.time()
        processes.launch("server", "-m", "fedqssl.cli.main", "deploy", "server", processes.fleet.path)
        until(lambda: processes.obeying(began), "the server serves again")
        until(lambda: processes.state() == "waiting", "the run is resumed by itself")
        assert processes.start() == name  # to ask for it is not an error
        assert processes.end("server") == 0 and processes.state() == "interrupted"


def test_same_bytes_as_in_one_place(deployment, pictures):
    now, lines = rounds_in_one_place(pictures, 2)
    for name in CLIENTS:
        assert (deployment.run / "clients" / name / "model.fqssl").read_bytes() == now.payloads[name]
        assert (deployment.fleet.client(name) / "state" / "model.fqssl").read_bytes() == now.payloads[name]
    assert (deployment.run / "checkpoints" / "round-00002" / "aggregated.fqssl").read_bytes() == now.aggregated
    found = [json.loads(line) for line in (deployment.run / "metrics.jsonl").read_text().splitlines()]
    for key in ("client_loss", "dequantize_loss", "weights", "rejected", "bytes_up", "bytes_down"):
        assert [line[key] for line in found] == [line[key] for line in lines], key


def test_the_folder_is_a_run_like_any_other(deployment):
    from fedqssl.reporting.data import read_run

    result = json.loads((deployment.run / "result.json").read_text())
    assert 0 <= result["global_accuracy"] <= 1  # of the server's labeled images
    assert {n: c["bits"] for n, c in result["clients"].items()} == CLIENTS
    assert (
        result["clients"]["van-3"]["local_accuracy"] is None
        and result["clients"]["car-1"]["local_accuracy"] is not None
    )
    data = read_run(deployment.run)
    assert [c.name for c in data.clients] == sorted(CLIENTS) and data.done == 2
    assert "global accuracy" in deployment.said["server"] and "round 2/2" in deployment.said["server"]
    assert f"the report is {deployment.run / 'report.html'}" in deployment.said["server"]
    assert "car-1" in (deployment.run / "report.html").read_text()


def test_an_unregistered_client_is_refused(deployment):
    code, said = deployment.stranger
    assert code == 2 and "error: the server at" in said and "refuses stranger" in said and "Traceback" not in said
    assert "stranger" not in json.loads((deployment.run / "roster.json").read_text())


def test_nothing_of_the_data_is_in_any_byte(deployment, pictures):
    """Every byte of all three clients, both ways, decrypted; that models are found in it shows that we look at the truth."""
    both = deployment.sent + deployment.received
    for name in CLIENTS:
        state = sorted((deployment.fleet.client(name) / "state").glob("round-*"))[-1]
        assert (state / "sent.fqssl").read_bytes() in deployment.sent
        assert (state / "received.fqssl").read_bytes() in deployment.received
        for file in (pictures / name).rglob("*.png"):
            assert file.name.encode() not in both
            assert file.read_bytes()[64:96] not in both
        for split in ("train", "test"):
            for image in load_dataset(f"folder:{pictures}/{name}", split).images:
                for layout in (image, image.permute(1, 2, 0)):
                    assert layout.contiguous().numpy().tobytes()[96:120] not in both
    assert b"\nfedqssl-versions: fedqssl=" in deployment.sent.lower()  # all that a client tells before it is asked
    assert b"marked-" not in deployment.sent and b"holiday-" not in both and str(pictures).encode() not in both


def test_flower_adds_little_to_our_bytes(deployment):
    """Messages are small here (18 to 110 kB), so the fixed part weighs; docs/performance.md has a model of real size."""
    result = json.loads((deployment.run / "result.json").read_text())
    assert deployment.sent.count(b"POST /v1/fleet/push-object") < 8 * 3 * 4
    assert len(deployment.sent) > result["bytes_up"]


def test_status_tells_who_took_part(deployment):
    for name, bits in CLIENTS.items():
        client = deployment.status["clients"][name]
        assert client["connected"] and client["bits"] == bits and client["bytes_up"] > 0 and client["wire_received"] > 0
        assert name in deployment.shown
    assert deployment.status["run"]["state"] == "finished" and "finished" in deployment.shown


def test_the_page_shows_the_fleet_its_run_and_its_metrics(deployment):
    name = deployment.run.name
    assert f"{name}: finished, 2 of 2 rounds done" in deployment.pages["/"] and "van-3" in deployment.pages["/"]
    assert "Learning curves" in deployment.pages["/run"]
    assert "fedqssl_round 2" in deployment.pages["/metrics"].splitlines()
    assert 'fedqssl_client_connected{client="car-1"} 1' in deployment.pages["/metrics"].splitlines()


def test_everyone_stops_when_told_and_no_secret_is_left(deployment):
    assert deployment.ends == dict.fromkeys([*CLIENTS, "server"], 0), deployment.said
    secrets = [(deployment.fleet.client(n) / "key").read_bytes().splitlines()[1] for n in CLIENTS]
    secrets.append((deployment.fleet.server / "server.key").read_bytes().splitlines()[1])
    for file in [
        *deployment.fleet.path.rglob("*.jsonl"),
        *deployment.fleet.path.rglob("*.log"),
        *deployment.run.rglob("*"),
    ]:
        if file.is_file():
            assert not any(secret in file.read_bytes() for secret in secrets), file
    for file in deployment.fleet.path.rglob("*"):
        if file.name in ("key", "server.key", "ca.key"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(secret in deployment.sent + deployment.received for secret in secrets)
    for text in deployment.said.values():
        assert "Traceback" not in text, text
