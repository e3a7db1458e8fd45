"""The server's supervisor thread: admits clients, starts and stops the requested run, writes the status.

``fedqssl deploy start`` and ``stop`` write ``server/wanted.json``; this thread reads it, so that nothing can be started
over the network. The run is a separate process, which ends with this one. A run that was interrupted, because the server or
its machine stopped or the run's process was killed, is resumed without being asked for.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fedqssl.deploy.control import LAST, TAKEN, is_finished
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import GOING, INTERRUPTED, Fleet, ServerData
from fedqssl.deploy.metrics import Rounds, prometheus
from fedqssl.deploy.status import collect
from fedqssl.deploy.superlink import SuperLink, Ticket
from fedqssl.files import read_json_or_none as read_json
from fedqssl.files import write_atomically, write_json

PAUSE = 1.0
HEARTBEAT = 10.0
TRIES = 3
"""How often a run whose process was killed is resumed if it finishes no round in between."""


class Supervisor(threading.Thread):
    """A thread that runs until :meth:`leave`.

    Args:
        fleet: the fleet.
        link: Flower's part of the server.
        data: the server's images.
        address: where the run's process reaches the server.
        events: the server's log.
        resume: whether an interrupted run is resumed without being asked for.
        say: receives lines for the terminal.
        chores: called every second.
    """

    def __init__(
        self,
        fleet: Fleet,
        link: SuperLink,
        data: ServerData,
        address: str,
        events: Events,
        resume: bool = True,
        say: Callable[[str], None] = lambda line: None,
        chores: tuple[Callable[[], None], ...] = (),
    ) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.fleet, self.link, self.data, self.address, self.events = fleet, link, data, address, events
        self.child: subprocess.Popen[bytes] | None = None
        self.ticket: Ticket | None = None
        self.resume, self.say, self.chores = resume, say, chores
        self.heartbeat, self.rounds = 0.0, Rounds()
        self.pending: str | None = None
        self.tries, self.reached = 0, -1
        self._leave = threading.Event()
        write_json(fleet.server / LAST, asdict(data))  # so that deploy server needs no options the next time
        left, wanted = (read_json(fleet.server / f"{name}.json") or {} for name in ("status", "wanted"))
        young = time.time() - wanted.get("time", 0.0) < TAKEN  # given while this process was starting: somebody waits
        self.answered = left.get("id") if young else wanted.get("id")
        if left.get("state") in (*GOING, INTERRUPTED):
            self._interrupted(left.get("run"), "the server stopped")

    def run(self) -> None:
        """Check everything once a second."""
        while not self._leave.wait(PAUSE):
            try:
                self.link.admit()
                self._watch()
                self._obey()
                self._resume()
                for chore in self.chores:
                    chore()
                write_json(self.fleet.server / "nodes.json", self._nodes())
                self._write_metrics()
            except Exception as error:  # a full disk or a half-written file must not end the server
                self.events.note("trouble", what=repr(error))

    def _write_metrics(self) -> None:
        values = collect(self.fleet)
        text = prometheus(values, self.rounds.of(self.fleet, values["run"]["run"]))
        write_atomically(self.fleet.server / "metrics.prom", text.encode())

    def leave(self) -> None:
        """End the run, if there is one, and this thread."""
        self._leave.set()
        self.join(30)
        self._end_run(INTERRUPTED, "the server stopped")

    def _nodes(self) -> dict[str, Any]:
        connected = self.link.connected()
        seen = self.link.guard.traffic
        return {
            "time": time.time(),
            "clients": {n: {"connected": connected.get(n, False), **asdict(seen[n])} for n in sorted(self.link.keys)},
            "outdated": self.link.guard.outdated,
        }

    def _obey(self) -> None:
        """Carry out the command in ``wanted.json``, once."""
        wanted = read_json(self.fleet.server / "wanted.json")
        if not isinstance(wanted, dict) or wanted.get("id") == self.answered:
            return
        if wanted.get("do") == "start" and self.child is not None:
            return  # the last run is about to end: next time
        self.answered, self.pending = wanted.get("id"), None
        if wanted.get("do") == "stop":
            self._end_run("stopped")
        elif wanted.get("do") == "start":
            self.tries, self.reached = 0, -1
            self._start(str(wanted["run"]))

    def _interrupted(self, run: str | None, why: str) -> None:
        """Note that a run did not end by itself or because it was told to; it is resumed if it can be."""
        done = run is None or is_finished(self.fleet, run) or not (self.fleet.runs / f"{run}.toml").is_file()
        again = self.resume and not done and self.tries < TRIES
        self.pending = run if again else None
        self._state(
            run, INTERRUPTED, f"{why}; " + ("it is being resumed" if again else "resume it with deploy start"), again
        )

    def _resume(self) -> None:
        """Resume the run that was interrupted."""
        if self.pending is None or self.child is not None:
            return
        run, self.pending, self.tries = self.pending, None, self.tries + 1
        self.events.note("run resumed", run=run)
        self.say(f"resuming {run}, which was interrupted (deploy stop ends it; --no-resume leaves it alone)")
        try:
            self._start(run)
        except Exception as error:
            self._state(run, "failed", f"it could not be resumed: {error}")
            raise

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
        self.child, self.ticket = None, None
        status = read_json(self.fleet.server / "status.json") or {}
        run, state, round_number = (status.get(key) for key in ("run", "state", "round"))
        if isinstance(round_number, int) and round_number > self.reached:
            self.tries, self.reached = 0, round_number
        if state in GOING and code == -signal.SIGTERM:
            # systemd tells all processes of a service at once: this one is about to stop, too
            self._state(run, INTERRUPTED, "it was told to end; the server's next start, or deploy start, resumes it")
        elif state in GOING and code < 0:
            self._interrupted(run, f"the run's process was killed (signal {-code})")
        elif state in GOING:
            self._state(run, "failed", f"its process ended with code {code}")
        elif state == INTERRUPTED and not self._leave.is_set():
            self._interrupted(run, str(status.get("error")))

    def _end_run(self, state: str, why: str | None = None) -> None:
        if self.child is None:
            return
        self.child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(20)
        self.child.kill()
        self.child.wait()
        status = read_json(self.fleet.server / "status.json") or {}  # now, when the run can change it no more
        if status.get("state") in GOING:
            self._state(status.get("run"), state, why)
        self._watch()
        self.pending = None

    def _state(self, run: str | None, state: str, error: str | None = None, resuming: bool = False) -> None:
        """Change the state in ``status.json``; the run itself writes the rest."""
        before = read_json(self.fleet.server / "status.json")
        kept = before if isinstance(before, dict) and before.get("run") == run else {}
        changed = {"run": run, "state": state, "error": error, "id": self.answered, "time": time.time()}
        write_json(self.fleet.server / "status.json", {**kept, **changed, "awaited": [], "resuming": resuming})
