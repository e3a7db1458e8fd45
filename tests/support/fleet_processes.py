"""A fleet on loopback as people run it: the real commands in processes of their own, each ended by its number."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedqssl.cli.main import app
from fedqssl.deploy import control
from fedqssl.deploy.fleet import Fleet
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.status import collect

PATIENCE = 1500
"""Seconds that something may take on a busy machine before a test gives up."""
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(condition, what: str, patience: float = PATIENCE):
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {patience} s"
        time.sleep(0.2)
    return found


class Processes:
    """Commands of one fleet; use as a context manager."""

    def __init__(self, folder: Path, pictures: Path, clients) -> None:
        self.folder, self.pictures = folder, pictures
        folder.mkdir(parents=True, exist_ok=True)
        make_fleet(folder / "fleet", None, free_port(), list(clients))
        self.fleet = Fleet.open(folder / "fleet")
        self.running: dict[str, subprocess.Popen] = {}

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        for process in self.running.values():  # all at once first, so that even Ctrl-C leaves none behind
            process.terminate()
        for name in list(self.running):
            self.end(name)

    def launch(self, name: str, *words) -> subprocess.Popen:
        """A process whose output is in ``<name>.out``."""
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "160"}
        command = [sys.executable, *map(str, words)]
        with (self.folder / f"{name}.out").open("a") as out:
            self.running[name] = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
        return self.running[name]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.running.pop(name)
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(60)

    def server(self, *more) -> None:
        began = time.time()
        words = "deploy", "server", self.fleet.path, "--buffer", f"folder:{self.pictures}/buffer", *more
        self.launch("server", "-m", "fedqssl.cli.main", *words)
        until(lambda: self.obeying(began) and self._listening(), "the server listens")

    def obeying(self, since: float) -> bool:
        """Whether a server that was launched at this time takes commands; it holds its lock long before that."""
        return self.fleet.serving() and self.fleet.exchanged("nodes.json").get("time", 0.0) > since

    def _listening(self) -> bool:
        assert self.running["server"].poll() is None, self.said("server")
        host, _, port = self.fleet.address.rpartition(":")
        with socket.socket() as sock:
            return sock.connect_ex((host, int(port))) == 0

    def client(self, name: str, bits: int, *more) -> None:
        words = "--name", name, "--bits", bits, "--data", f"folder:{self.pictures}/{name}", *more
        self.launch(name, "-m", "fedqssl.cli.main", "deploy", "client", self.fleet.path, *words)

    def strange(self, name: str, bits: int, how: str) -> None:
        """A client that does not behave (``strange_client.py``)."""
        self.launch(
            name, HERE / "strange_client.py", self.fleet.path, name, bits, f"folder:{self.pictures}/{name}", how
        )

    def command(self, *words) -> Result:
        """How a command ends that only talks to the fleet's folder; it needs no process of its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control, "TAKEN", PATIENCE)
            return CliRunner().invoke(app, ["deploy", *map(str, words)], env={"COLUMNS": "160"})

    def start(self, *words) -> str:
        """Start (or resume) a run and return its name."""
        done = self.command("start", self.fleet.path, *words)
        assert done.exit_code == 0, f"{done.exception} {self.said('server')}"
        return done.stdout.split(" in ")[0].split()[-1]

    def state(self) -> str:
        return collect(self.fleet)["run"]["state"]

    def finished(self, name: str) -> Path:
        until(lambda: self.state() in ("finished", "failed", "stopped"), "the run ends")
        assert self.state() == "finished", self.said("server")
        return self.fleet.runs / name

    def connected(self, *names: str) -> None:
        def there() -> bool:
            for name in names:
                assert self.running[name].poll() is None, self.said(name)
            return all(collect(self.fleet)["clients"][name]["connected"] for name in names)

        until(there, f"{', '.join(names)} are connected")
