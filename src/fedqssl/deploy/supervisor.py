"""The server's supervisor thread: admits clients, starts and stops the requested run, writes the status.

``fedqssl deploy start`` and ``stop`` write ``server/wanted.json``; this thread reads it, so that nothing can be started
over the network. The run is a separate process, which ends with this one.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from fedqssl.deploy.control import LAST, TAKEN, collect, prometheus
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import OVER, Fleet, ServerData
from fedqssl.deploy.superlink import SuperLink, Ticket
from fedqssl.files import read_json_or_none as read_json
from fedqssl.files import write_atomically, write_json

PAUSE = 1.0
HEARTBEAT = 10.0


class Supervisor(threading.Thread):
    """A thread that runs until :meth:`leave`."""

    def __init__(self, fleet: Fleet, link: SuperLink, data: ServerData, address: str, events: Events) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.fleet, self.link, self.data, self.address, self.events = fleet, link, data, address, events
        self.child: subprocess.Popen[bytes] | None = None
        self.ticket: Ticket | None = None
        self.heartbeat = 0.0
        self._leave = threading.Event()
        write_json(fleet.server / LAST, asdict(data))  # so that deploy server needs no options the next time
        left, wanted = (read_json(fleet.server / f"{name}.json") or {} for name in ("status", "wanted"))
        young = time.time() - wanted.get("time", 0.0) < TAKEN  # given while this process was starting: somebody waits
        self.answered = left.get("id") if young else wanted.get("id")
        if left.get("state") not in (None, *OVER):
            self._state(left.get("run"), "failed", "the server stopped; resume with fedqssl deploy start")

    def run(self) -> None:
        """Check everything once a second."""
        while not self._leave.wait(PAUSE):
            try:
                self.link.admit()
                self._watch()
                self._obey()
                write_json(self.fleet.server / "nodes.json", self._nodes())
                write_atomically(self.fleet.server / "metrics.prom", prometheus(collect(self.fleet)).encode())
            except Exception as error:  # a full disk or a half-written file must not end the server
                self.events.note("trouble", what=repr(error))

    def leave(self) -> None:
        """End the run, if there is one, and this thread."""
        self._leave.set()
        self.join(30)
        self._stop()

    def _nodes(self) -> dict[str, Any]:
        connected = self.link.connected()
        seen = self.link.guard.traffic
        return {
            "time": time.time(),
            "clients": {n: {"connected": connected.get(n, False), **asdict(seen[n])} for n in sorted(self.link.keys)},
        }

    def _obey(self) -> None:
        """Carry out the command in ``wanted.json``, once."""
        wanted = read_json(self.fleet.server / "wanted.json")
        if not isinstance(wanted, dict) or wanted.get("id") == self.answered:
            return
        if wanted.get("do") == "start" and self.child is not None:
            return  # the last run is about to end: next time
        self.answered = wanted.get("id")
        if wanted.get("do") == "stop":
            self._stop()
        elif wanted.get("do") == "start":
            self._start(str(wanted["run"]))

    def _start(self, name: str) -> None:
        self.ticket = self.link.open_run()
        self.heartbeat = time.monotonic()
        self._state(name, "starting")
        command = [sys.executable, "-m", "fedqssl.deploy.server_app"]
        # a session of its own: Ctrl-C in the server's terminal is for the server, which then stops the run
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        task = {"fleet": str(self.fleet.path), "run": name, "address": self.address, "data": asdict(self.data)}
        pipe = self.child.stdin
        assert pipe is not None
        pipe.write(json.dumps({**task, "ticket": asdict(self.ticket)}).encode() + b"\n")  # no secret in a command line
        pipe.flush()  # and left open: when it closes, the child ends
        self.events.note("run started", run=name, pid=self.child.pid)

    def _watch(self) -> None:
        """Send heartbeats for the run's process while it is alive; record when it has ended."""
        if self.child is None or self.ticket is None:
            return
        code = self.child.poll()
        if code is None:
            if time.monotonic() - self.heartbeat > HEARTBEAT:
                self.link.keep_alive(self.ticket)
                self.heartbeat = time.monotonic()
            return
        sent, received = self.link.close_run(self.ticket, code == 0)
        self.events.note("run ended", code=code, flower_bytes_sent=sent, flower_bytes_received=received)
        status = read_json(self.fleet.server / "status.json") or {}
        if status.get("state") not in OVER and code == -signal.SIGTERM:
            self._state(status.get("run"), "stopped")  # systemd tells all processes of a service at once
        elif status.get("state") not in OVER:
            self._state(status.get("run"), "failed", f"its process ended with code {code}")
        self.child, self.ticket = None, None

    def _stop(self) -> None:
        if self.child is None:
            return
        self.child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(20)
        self.child.kill()
        self.child.wait()
        status = read_json(self.fleet.server / "status.json") or {}  # now, when the run can change it no more
        if status.get("state") not in OVER:
            self._state(status.get("run"), "stopped")
        self._watch()

    def _state(self, run: str | None, state: str, error: str | None = None) -> None:
        """Change the state in ``status.json``; the run itself writes the rest."""
        before = read_json(self.fleet.server / "status.json")
        kept = before if isinstance(before, dict) and before.get("run") == run else {}
        changed = {"run": run, "state": state, "error": error, "id": self.answered, "time": time.time()}
        write_json(self.fleet.server / "status.json", {**kept, **changed})
