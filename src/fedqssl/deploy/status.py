"""What ``fedqssl deploy status`` shows: the server, its run, whom it is waiting for, and every client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.table import Column, Table

from fedqssl.deploy.fleet import GOING, INTERRUPTED, Fleet, FleetError
from fedqssl.imported import nearest
from fedqssl.runs.result import MANY
from fedqssl.units import counted, seconds_text

COLUMNS = ("client", "connected", "bits", "images", "last seen", "models up", "models down", "wire up")
SHOWN = 40
"""Clients of a large fleet in the table."""


def collect(fleet: Fleet) -> dict[str, Any]:
    """The current status as JSON values: the server, its run, and every client whose key is known."""
    nodes, status = fleet.exchanged("nodes.json"), fleet.exchanged("status.json")
    serving, told = fleet.serving(), status.get("clients") or {}
    refused = {**(nodes.get("outdated") or {}), **(status.get("refused") or {})}
    clients = {}
    for name in sorted({*fleet.public_keys(), *told}):
        node, known = (nodes.get("clients") or {}).get(name, {}), told.get(name, {})
        clients[name] = {
            "connected": serving and bool(node.get("connected")),
            "bits": known.get("bits"),
            "images": known.get("images"),
            "last_seen": node.get("last_seen") or None,
            "bytes_up": known.get("bytes_up", 0),
            "bytes_down": known.get("bytes_down", 0),
            "wire_received": node.get("received", 0),
            "wire_sent": node.get("sent", 0),
            "refused": refused.get(name) or node.get("twin") or None,
        }
    run = {key: status.get(key) for key in ("run", "state", "error", "round", "rounds", "folder")}
    run |= {"awaited": status.get("awaited") or [], "awaited_since": status.get("awaited_since") or None}
    if not serving and run["state"] in GOING:
        run |= {"state": INTERRUPTED, "awaited": []}
    return {"fleet": str(fleet.path), "address": fleet.address, "serving": serving, "run": run, "clients": clients}


def server_line(values: Mapping[str, Any]) -> str:
    """The server in a few words: ``server up, 2 of 3 clients connected``."""
    there = [client["connected"] for client in values["clients"].values()]
    return (
        f"server up, {sum(there)} of {counted(len(there), 'client')} connected" if values["serving"] else "server down"
    )


def run_line(values: Mapping[str, Any]) -> str:
    """Its run in a few words: ``smoke-1: running, round 2 of 20``."""
    run = values["run"]
    if not run["run"]:
        return "no run yet"
    done, rounds = run["round"] or 0, run["rounds"]
    if not rounds:
        return f"{run['run']}: {run['state']}"
    if run["state"] == "running":
        return f"{run['run']}: running, round {min(done + 1, rounds)} of {rounds}"
    state = "waiting for clients" if run["state"] == "waiting" else run["state"]
    return f"{run['run']}: {state}, {done} of {counted(rounds, 'round')} done"


def headline(values: Mapping[str, Any]) -> str:
    """Both in one line."""
    return f"{server_line(values)}; {run_line(values)}"


def awaited(values: Mapping[str, Any]) -> str:
    """Whom the round is waiting for, and since when; empty if it is waiting for nobody."""
    run = values["run"]
    if not run["awaited"]:
        return ""
    since = run["awaited_since"]
    ago = f" for {seconds_text(max(time.time() - since, 1.0))}" if since else ""
    return f"the round has been waiting for {', '.join(run['awaited'])}{ago}"


def ago(then: float | None) -> str:
    """How long ago it was: ``3.0 s ago``; None is never."""
    return "never" if then is None else f"{seconds_text(max(1.0, time.time() - then))} ago"


def _shown(clients: Mapping[str, Any], only: str | None) -> tuple[list[str], str | None]:
    """Whom the table shows, and what it says about the others."""
    if only is not None:
        if only not in clients:
            raise FleetError(f"the fleet has no client {only!r}{nearest(only, clients)}")
        return [only], None
    if len(clients) <= MANY:
        return list(clients), None
    away = [name for name, c in clients.items() if not c["connected"]]
    first = [*away, *(name for name in clients if name not in set(away))][:SHOWN]
    there = len(clients) - len(away)
    return (
        first,
        f"{there:,} of {len(clients):,} clients are connected; these are {len(first)}, the others first (--client NAME)",
    )


def table(values: Mapping[str, Any], only: str | None = None) -> Table:
    """The clients as text: all, ``only`` one, or of a large fleet those that are not connected first."""
    names, caption = _shown(values["clients"], only)
    found = Table(*(Column(name, no_wrap=name == "connected") for name in COLUMNS), caption=caption)
    for name in names:
        c = values["clients"][name]
        known = ["-" if c[key] is None else str(c[key]) for key in ("bits", "images")]
        sizes = [f"{c[key] / 1024:.0f} KiB" for key in ("bytes_up", "bytes_down", "wire_received")]
        found.add_row(name, "yes" if c["connected"] else "no", *known, ago(c["last_seen"]), *sizes)
    return found


__all__ = ["ago", "awaited", "collect", "headline", "run_line", "server_line", "table"]
