"""``flwr run`` itself, as Flower's users type it: in simulation, and with a SuperLink and SuperNodes over TLS.

Everything that is started has a ``FLWR_HOME`` of its own, by which it is found and ended, process by process.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from test_flower_app import TINY_WORDS

from fedqssl.deploy.fleet import Fleet
from fedqssl.deploy.flower_template import write_app
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.engines.flower import QUIET
from fleet_processes import free_port, until
from flower_pictures import CLIENTS, rounds_in_one_place, words
from tiny_run import known_run, model_bytes

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
PATIENCE = 1500
TOO_BUSY = "Failed to start local SuperLink within 15s"
"""What Flower says on a busy machine; its SuperLink may be there a moment later."""


def with_home(home: Path) -> list[int]:
    """Processes whose environment names this home."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={home}".encode() in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


class Flower:
    """Flower's commands, in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "flwr"
        self.home.mkdir(parents=True)
        paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path[1:]]))
        own = {"FLWR_HOME": str(self.home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
        self.env = {**os.environ, **QUIET, **own, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

    def run(self, *command, again: int = 5) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *map(str, command[1:])],
            env=self.env, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder,
        )  # fmt: skip
        said = done.stdout + done.stderr + self.logs()
        if again and done.returncode and TOO_BUSY in said:
            self.end()
            return self.run(*command, again=again - 1)
        assert done.returncode == 0, said[-6000:]
        return said

    def launch(self, name: str, *command) -> subprocess.Popen:
        with (self.folder / f"{name}.out").open("w") as out:
            words_ = [str(BIN / command[0]), *map(str, command[1:])]
            return subprocess.Popen(
                words_, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.folder
            )

    def logs(self) -> str:
        return "\n".join(f"--- {f.name}\n{f.read_text()[-3000:]}" for f in sorted(self.folder.glob("*.out")))

    def end(self) -> None:
        """End whatever was started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in with_home(self.home):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + 30
            while with_home(self.home) and time.monotonic() < end:
                time.sleep(0.2)


@contextmanager
def flower(folder: Path):
    found = Flower(folder)
    try:
        yield found
    finally:
        found.end()


def test_flwr_run_in_simulation_has_the_bytes_of_a_run_in_process(tmp_path):
    write_app(tmp_path / "app", "smoke", tmp_path / "runs")
    with flower(tmp_path / "f") as found:
        (found.home / "config.toml").write_text(
            '[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = ":local:"\n'
        )
        nodes = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
        changed = f'settings="{TINY_WORDS}"'
        said = found.run(
            "flwr", "run", tmp_path / "app", "sim", "--stream", "--federation-config", nodes, "-c", changed
        )
        run = tmp_path / "runs" / "smoke-1"
        until(lambda: (run / "result.json").exists(), f"the run ends: {said[-3000:]}", PATIENCE)
    assert model_bytes(run) == model_bytes(known_run().folder) != {}
    aggregated = "checkpoints/round-00002/aggregated.fqssl"
    assert (run / aggregated).read_bytes() == (known_run().folder / aggregated).read_bytes()


def test_supernodes_over_tls_have_the_bytes_of_one_place(tmp_path, pictures):
    write_app(tmp_path / "app", "smoke", tmp_path / "home")
    make_fleet(tmp_path / "keys", None, free_port(), list(CLIENTS))  # for its certificates and keys alone
    keys = Fleet.open(tmp_path / "keys")
    port = keys.address.rpartition(":")[2]
    with flower(tmp_path / "f") as found:
        text = f'[superlink]\ndefault = "tls"\n\n[superlink.tls]\naddress = "{keys.address}"\n'
        (found.home / "config.toml").write_text(text + f'root-certificates = "{keys.authority}"\n')
        tls = "--ssl-ca-certfile", keys.authority, "--ssl-certfile", keys.server / "server.crt"
        tls = *tls, "--ssl-keyfile", keys.server / "server.key"
        own = "--host", "127.0.0.1", "--port", port, "--database", tmp_path / "sl.db"
        off = "--enable-supernode-auth", "--disable-runtime-dependency-installation"
        link = found.launch("superlink", "flower-superlink", *tls, *own, *off)
        until(lambda: link.poll() is None and _listens(int(port)), "the SuperLink listens", PATIENCE)
        for name, bits in CLIENTS.items():
            found.run("flwr", "supernode", "register", keys.client(name) / "key.pub", "tls", "--name", name)
            told = f'name="{name}" bits={bits} data="folder:{pictures}/{name}" state="{tmp_path}/{name}"'
            secret = "--auth-supernode-private-key", keys.client(name) / "key", "--node-config", told
            where = "--root-certificates", keys.authority, "--superlink", keys.address, "--port", str(free_port())
            found.launch(name, "flower-supernode", *where, *secret)
        changed = f'settings="{" ".join(words())}" buffer="folder:{pictures}/buffer"'
        said = found.run("flwr", "run", tmp_path / "app", "tls", "--stream", "-c", changed)
        run = tmp_path / "home" / "runs" / "smoke-1"
        until(lambda: (run / "result.json").exists(), f"the run ends: {said[-3000:]}", PATIENCE)
        now, _ = rounds_in_one_place(pictures, 2)
        assert model_bytes(run) == now.payloads
        for name in CLIENTS:
            assert (tmp_path / name / "state" / "model.fqssl").read_bytes() == now.payloads[name]


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
