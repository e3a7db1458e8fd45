"""What a supervisor of a fleet needs when its runs are processes that only wait."""

import subprocess
import sys

from fedqssl.deploy import supervisor
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import ServerData


class Link:
    """Flower's part of the server."""

    def open_run(self):
        return supervisor.Ticket(1, 2, "token")

    def close_run(self, ticket, ok):
        return 0, 0


def supervisor_of(fleet, **words):
    events = Events(fleet.server / "log.jsonl")
    return supervisor.Supervisor(fleet, Link(), ServerData("scenes"), "127.0.0.1:1", events, **words)


def only_wait(monkeypatch) -> None:
    """Processes that a supervisor starts end when their standard input does."""
    real = subprocess.Popen
    wait = [sys.executable, "-c", "import sys; sys.stdin.buffer.readline(); sys.stdin.buffer.read()"]
    monkeypatch.setattr(supervisor.subprocess, "Popen", lambda command, **words: real(wait, **words))
