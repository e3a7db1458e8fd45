"""``fedqssl deploy server --page``: a fleet in the browser while it runs. It only reads, in a process of its own.

``/`` shows the server, its run and its clients, ``/run`` the report of the run so far, and ``/metrics`` is for Prometheus.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.metrics import Rounds, prometheus
from fedqssl.deploy.status import ago, awaited, collect, run_line, server_line
from fedqssl.listen import bind
from fedqssl.reporting.live import LivePage, server
from fedqssl.reporting.page import build_report, render
from fedqssl.reporting.theme import Theme, percent, plain
from fedqssl.units import counted, seconds_text
from fedqssl.watch_parent import end_with_parent

NICENESS = 10
"""The page makes way for training."""


class FleetPage(LivePage):
    """The fleet at a glance."""

    def __init__(self, fleet: Fleet, seconds: float = 5) -> None:
        super().__init__(fleet.path, seconds=seconds)
        self.fleet, self.rounds = fleet, Rounds()

    def build(self) -> str:
        """See :class:`LivePage`."""
        values = collect(self.fleet)
        run, known = values["run"], values["clients"]
        lines = self.rounds.of(self.fleet, run["run"])
        alerts = [f"{name} cannot take part: {c['refused']}" for name, c in known.items() if c["refused"]]
        if run["error"]:
            alerts.insert(0, f"{run['run']}: {run['error']}")
        shown = (self.fleet.runs / str(run["run"]) / "config.toml").is_file()
        return render(
            "fleet.html",
            name=self.fleet.path.name,
            live=self.seconds,
            theme=Theme(c["bits"] for c in known.values() if c["bits"] is not None),
            run_line=run_line(values),
            server_line=server_line(values),
            awaited=awaited(values),
            alerts=alerts,
            tiles=_tiles(lines),
            run=run["run"] if shown else None,
            clients=[_client(name, known[name], run["awaited"], lines) for name in known],
        )


def _tiles(lines: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The figures of the last round: name, value, a short explanation."""
    if not lines:
        return []
    last = lines[-1]
    measured = [line for line in lines if line.get("knn") is not None]
    took = (last.get("clients_wall_seconds") or 0.0) + (last.get("server_seconds") or 0.0)
    unused = sum(len(line.get("rejected") or {}) for line in lines)
    found = [
        ("loss", plain(last.get("loss")), f"round {last['round']}"),
        ("last round", seconds_text(took), f"server {seconds_text(last.get('server_seconds') or 0.0)}"),
        ("updates not used", str(unused), f"in {counted(len(lines), 'round')}"),
    ]
    if measured:
        floor = measured[-1].get("untrained_knn")
        found.insert(1, ("kNN", percent(measured[-1]["knn"]), f"untrained {percent(floor)}"))
    return found


def _client(name: str, told: dict[str, Any], waited: list[str], lines: list[dict[str, Any]]) -> dict[str, Any]:
    rejected = sum(name in (line.get("rejected") or {}) for line in lines)
    return {**told, "name": name, "seen": ago(told["last_seen"]), "awaited": name in waited, "rejected": rejected}


class RunPage(LivePage):
    """The report of the fleet's current run; code that its settings name is not imported."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.path)
        self.fleet = fleet

    def build(self) -> str:
        """See :class:`LivePage`."""
        run = collect(self.fleet)["run"]["run"]
        if run is None:
            raise ValueError("there is no run yet")
        folder = self.fleet.runs / str(run)
        return build_report(folder, folder, live=self.seconds)


class Metrics(LivePage):
    """For Prometheus."""

    kind = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.path, seconds=1)
        self.fleet, self.rounds = fleet, Rounds()

    def build(self) -> str:
        """See :class:`LivePage`."""
        values = collect(self.fleet)
        return prometheus(values, self.rounds.of(self.fleet, values["run"]["run"]))


def place(text: str) -> tuple[str, int]:
    """``8080``, ``0.0.0.0:8080`` or ``[::]:8080``: where the page listens; on this machine alone unless an address is given."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise FleetError(
            f"--page takes a port, like 8080, or an address and a port, like 192.168.1.5:8080, not {text!r}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


class PageProcess:
    """The page's process, which ends with this one; a port that cannot be used is an error at once."""

    def __init__(self, fleet: Fleet, where: str) -> None:
        host, port = place(where)
        try:
            made = bind(host, port)
        except OSError as error:
            raise FleetError(f"--page {where} cannot be used; choose another port, or leave it out") from error
        with made as sock:
            self.address = sock.getsockname()[:2]
            command = [sys.executable, "-m", "fedqssl.deploy.page"]
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=(sock.fileno(),), start_new_session=True
            )
            assert self.child.stdin is not None
            task = {"fleet": str(fleet.path), "socket": sock.fileno()}
            self.child.stdin.write(json.dumps(task).encode() + b"\n")
            self.child.stdin.flush()  # and left open: when it closes, the child ends

    def end(self) -> None:
        """End it."""
        self.child.terminate()
        self.child.wait(20)


def start() -> None:
    """Read the task from standard input, which stays open as long as the server is running."""
    task = json.loads(sys.stdin.buffer.readline())
    end_with_parent(sys.stdin)
    import torch

    torch.set_num_threads(1)
    os.nice(NICENESS)
    fleet, sock = Fleet.open(Path(task["fleet"])), socket.socket(fileno=int(task["socket"]))
    more = {"/run": RunPage(fleet), "/metrics": Metrics(fleet)}
    with server(FleetPage(fleet), 0, more, sock) as found:
        found.serve_forever()


if __name__ == "__main__":
    start()
