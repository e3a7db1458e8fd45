"""The run's process on the server: a ServerApp that carries out a run with a fleet's clients. Started only by the supervisor."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from rich.console import Console

from fedqssl.deploy.fleet import Fleet, ServerData
from fedqssl.deploy.fleet_run import FleetRun
from fedqssl.engines.flower import hush
from fedqssl.runs.progress import Progress
from fedqssl.watch_parent import end_with_parent

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run that the configuration names."""
    config = context.run_config
    fleet = Fleet.open(Path(str(config["fleet"])))
    data = ServerData(**json.loads(str(config["data"])))
    result = FleetRun(grid, fleet, str(config["run"]), data).play(Progress(functools.partial(print, flush=True)))
    Console().print(result.table())


def connect(fleet: Fleet, address: str, ticket: dict[str, Any]) -> Grid:
    """A Grid for this run; the address is on this machine."""
    TaskIdentity.task_id, TaskIdentity.run_id = ticket["task_id"], ticket["run_id"]
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    grid = HttpGrid(address, False, fleet.authority.read_bytes(), token=ticket["token"])
    grid.set_run(Run.create_empty(ticket["run_id"]))
    return grid


def start() -> None:
    """Read the task from standard input, which stays open as long as the server is running."""
    task = json.loads(sys.stdin.buffer.readline())
    end_with_parent(sys.stdin)  # two processes must never work on one run
    fleet = Fleet.open(Path(task["fleet"]))
    hush(fleet.server / "flower-run.log")  # two processes cannot rotate one file
    grid = connect(fleet, task["address"], task["ticket"])
    words = {"fleet": task["fleet"], "run": task["run"], "data": json.dumps(task["data"])}
    context = Context(
        run_id=task["ticket"]["run_id"],
        node_id=SUPERLINK_NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=words,
    )
    try:
        app(grid, context)
    except (ValueError, OSError) as error:
        if os.environ.get("FEDQSSL_DEBUG") == "1":
            raise
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    start()
