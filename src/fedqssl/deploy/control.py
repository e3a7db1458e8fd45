"""``start``, ``stop`` and ``status``: files in the server's folder, so that only users who can write there control the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedqssl.config import RunConfig, load_config, to_toml
from fedqssl.config.load import parse_words
from fedqssl.deploy.fleet import GOING, OVER, Fleet, FleetError, full
from fedqssl.files import write_atomically, write_json

LAST = "last.json"
"""In the server's folder: the images of its last start, used by a start without options."""
TAKEN = 30.0
"""Seconds within which the server must accept a command."""


def _check_serving(fleet: Fleet) -> None:
    if not fleet.serving():
        images = "" if (fleet.server / LAST).exists() else " --buffer folder:PATH"
        raise FleetError(
            f"no server is running for {fleet.path}; start it with: fedqssl deploy server {fleet.path}{images}"
        )


def _order(fleet: Fleet, **values: str) -> str:
    _check_serving(fleet)
    number = secrets.token_hex(8)
    write_json(fleet.server / "wanted.json", {"id": number, "time": time.time(), **values})
    return number


def unfinished(fleet: Fleet) -> str | None:
    """The newest unfinished run."""
    waiting = [f for f in fleet.runs.glob("*.toml") if not (fleet.runs / f.stem / "result.json").exists()]
    return max(waiting, key=lambda f: f.stat().st_mtime).stem if waiting else None


def requested(preset: str, settings: Sequence[str]) -> RunConfig:
    """A run's settings for real machines, where each client decides on its own bits and images."""
    given = parse_words(settings)
    for key in ("buffer", "buffer_images"):
        if key in given:
            raise FleetError(f"{key} cannot be set here: the buffer is what fedqssl deploy server --buffer names")
    for key in ("clients", "bits", "devices", "data", "engine", "partition", "group", "evaluation.holdout"):
        if key in given:
            raise FleetError(
                f"{key} cannot be set on real machines: every client that connects takes part, with its own bits and images"
            )
    least = given.get("min_clients", "")
    clients = int(least) if least.isdecimal() and int(least) else 10
    config = load_config(preset, {**given, "bits": 8, "clients": clients})
    unset = dict.fromkeys(("data_dir", "images", "devices"))
    return config.model_copy(update={"engine": "flower", "data": "fleet", "partition": "natural", **unset})


def start(fleet: Fleet, preset: str | None, settings: Sequence[str], new: bool = False) -> tuple[str, bool]:
    """Start a run, or resume the unfinished one; returns its name and whether it was resumed."""
    _check_serving(fleet)
    status = fleet.exchanged("status.json")
    if status.get("state") in GOING:
        raise FleetError(
            f"{status.get('run')} is running; see fedqssl deploy status, or stop it with fedqssl deploy stop"
        )
    known = None if new else unfinished(fleet)
    if known is None:
        if preset is None:
            raise FleetError("there is no run to resume; start one with --preset")
        name = _next(fleet.runs, Path(preset).stem)
        write_atomically(fleet.runs / f"{name}.toml", to_toml(requested(preset, settings)).encode())
    elif preset is not None and to_toml(requested(preset, settings)) != _text(fleet, known):
        raise FleetError(
            f"{known} is not finished and has other settings; resume it without --preset, or start a new run with --new"
        )
    elif preset is None and settings:
        raise FleetError(
            f"{known} will be resumed with its own settings; leave out {' '.join(settings)}, or use --new --preset"
        )
    else:
        name = known
    number = _order(fleet, do="start", run=name)
    try:
        _until(lambda: fleet.exchanged("status.json").get("id") == number)
    except BaseException:
        _withdraw(fleet, number)
        raise
    return name, known is not None


def _withdraw(fleet: Fleet, number: str) -> None:
    """Withdraw a command that nobody is waiting for: it must not start a run an hour later."""
    if fleet.exchanged("wanted.json").get("id") == number:
        (fleet.server / "wanted.json").unlink(missing_ok=True)


def _text(fleet: Fleet, name: str) -> str:
    return (fleet.runs / f"{name}.toml").read_text(encoding="utf-8")


def _next(runs: Path, name: str) -> str:
    taken = [f.stem.removeprefix(f"{name}-") for f in runs.glob(f"{name}-*.toml")]
    return f"{name}-{max((int(n) for n in taken if n.isdecimal()), default=0) + 1}"


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TAKEN
    while not condition():
        if time.monotonic() > end:
            raise FleetError("the server did not accept the command; see server/log.jsonl")
        time.sleep(0.2)


def stop(fleet: Fleet) -> str:
    """Stop the current run; its last checkpoint stays, and ``start`` resumes from it."""
    status = fleet.exchanged("status.json")
    if status.get("state") not in GOING:
        raise FleetError("no run is active")
    _order(fleet, do="stop")
    _until(lambda: fleet.exchanged("status.json").get("state") in OVER)
    return str(status["run"])


def follow(fleet: Fleet, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Show the run's log until it ends; returns its final status."""
    log, warned = fleet.runs / name / "log.txt", False
    shown = log.stat().st_size if log.exists() else 0
    while True:
        if not warned and (why := full(fleet.server, write=False)):
            say(f"warning: {why}; until there is space, the run cannot continue, and its state here may be old")
            warned = True
        status = fleet.exchanged("status.json")
        over = status.get("run") != name or status.get("state") in OVER or not fleet.serving()
        if log.exists():
            with log.open(encoding="utf-8") as file:
                file.seek(shown)
                for line in file:
                    say(line.rstrip("\n"))
                shown = file.tell()
        if over:
            return status
        time.sleep(0.5)


def collect(fleet: Fleet) -> dict[str, Any]:
    """The current status as JSON values: the server, its run, and every client whose key is known."""
    nodes, status = fleet.exchanged("nodes.json"), fleet.exchanged("status.json")
    serving, told = fleet.serving(), status.get("clients") or {}
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
            "refused": (status.get("refused") or {}).get(name) or node.get("twin") or None,
        }
    run = {key: status.get(key) for key in ("run", "state", "error", "round", "rounds", "folder")}
    if not serving and run["state"] not in (None, *OVER):
        run["state"] = "interrupted"
    return {"fleet": str(fleet.path), "address": fleet.address, "serving": serving, "run": run, "clients": clients}


def table(values: dict[str, Any]) -> Table:
    """The status as text."""
    run, up = values["run"], "up" if values["serving"] else "down"
    now = f"{run['run']} {run['state']}, round {run['round'] or 0} of {run['rounds'] or '?'}"
    columns = ("client", "connected", "bits", "images", "last seen", "models up", "models down", "wire up")
    found = Table(*columns, title=f"server {up}; {now if run['run'] else 'no run'}")
    for name, c in values["clients"].items():
        seen = "never" if c["last_seen"] is None else f"{max(0, time.time() - c['last_seen']):.0f} s ago"
        known = ["-" if c[key] is None else str(c[key]) for key in ("bits", "images")]
        sizes = [f"{c[key] / 1024:.0f} KiB" for key in ("bytes_up", "bytes_down", "wire_received")]
        found.add_row(name, "yes" if c["connected"] else "no", *known, seen, *sizes)
    return found


def prometheus(values: dict[str, Any]) -> str:
    """The status in the text format that Prometheus reads."""
    run = values["run"]
    lines = [f"fedqssl_serving {int(values['serving'])}", f"fedqssl_round {run['round'] or 0}"]
    lines.append(f"fedqssl_running {int(run['state'] in GOING)}")
    for name, c in values["clients"].items():
        seen = {"connected": int(c["connected"]), "last_seen_seconds": c["last_seen"] or 0}
        sizes = {f"{key}_bytes": c[key] for key in ("wire_received", "wire_sent")}
        lines += [f'fedqssl_client_{key}{{client="{name}"}} {value}' for key, value in {**seen, **sizes}.items()]
    return "\n".join(lines) + "\n"
