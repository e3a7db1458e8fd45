"""``start`` and ``stop``: files in the server's folder, so that only users who can write there control the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig, load_config, to_toml
from fedqssl.config.load import parse_words
from fedqssl.deploy.fleet import GOING, INTERRUPTED, OVER, Fleet, FleetError, full
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


def is_finished(fleet: Fleet, run: str) -> bool:
    """Whether a run has its result."""
    return (fleet.runs / run / "result.json").exists()


def unfinished(fleet: Fleet) -> str | None:
    """The newest unfinished run."""
    waiting = [f for f in fleet.runs.glob("*.toml") if not is_finished(fleet, f.stem)]
    return max(waiting, key=lambda f: f.stat().st_mtime).stem if waiting else None


def requested(preset: str, settings: Sequence[str]) -> RunConfig:
    """A run's settings for real machines, where each client decides on its own bits and images."""
    given = parse_words(settings)
    for key in ("buffer", "buffer_images"):
        if key in given:
            raise FleetError(f"{key} cannot be set here: the buffer is what fedqssl deploy server --buffer names")
    for key in ("clock", "availability"):
        if key in given:
            raise FleetError(f"{key} cannot be set here: real machines have clocks of their own; use deadline")
    for key in ("clients", "bits", "devices", "data", "engine", "partition", "group", "evaluation.holdout"):
        if key in given:
            raise FleetError(
                f"{key} cannot be set on real machines: every client that connects takes part, with its own bits and images"
            )
    least = given.get("min_clients", "")
    clients = int(least) if least.isdecimal() and int(least) else 10
    config = load_config(preset, {**given, "bits": 8, "clients": clients})
    unset = dict.fromkeys(("data_dir", "images", "devices", "clock", "availability"))
    return config.model_copy(update={"engine": "flower", "data": "fleet", "partition": "natural", **unset})


def start(fleet: Fleet, preset: str | None, settings: Sequence[str], new: bool = False) -> tuple[str, bool]:
    """Start a run, or resume the unfinished one; returns its name and whether it was resumed.

    A server that was restarted resumes its run itself: to ask for that once more is not an error.
    """
    _check_serving(fleet)
    status = fleet.exchanged("status.json")
    if status.get("state") in GOING:
        if preset is None and not settings and not new:
            return str(status.get("run")), True
        raise FleetError(
            f"{status.get('run')} is running; see fedqssl deploy status, or stop it with fedqssl deploy stop"
        )
    known = None if new else unfinished(fleet)
    if known is None:
        if preset is None:
            raise FleetError("there is no run to resume; start one with --preset")
        name = next_name(fleet.runs, Path(preset).stem)
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


def next_name(runs: Path, name: str) -> str:
    """The name of the next run of a preset: ``smoke-3``."""
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


def _is_over(status: dict[str, Any]) -> bool:
    """Whether a run has ended; one that was interrupted while its server lives is about to be resumed."""
    return status.get("state") in OVER and not status.get("resuming")


def ended(name: str, status: dict[str, Any], folder: Path) -> str:
    """Why a run that somebody was waiting for is not finished."""
    if status.get("run") != name:
        return f"{name} ended, and {status.get('run')} was started; see fedqssl deploy status {folder}"
    if status.get("state") in (*GOING, INTERRUPTED):
        return f"the server stopped, and {name} with it; start the server again, and it resumes the run"
    return f"{name} failed: {status.get('error') or 'no error was recorded'}"


def follow(fleet: Fleet, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Show the run's log until it ends; returns its final status."""
    log, warned = fleet.runs / name / "log.txt", False
    shown = log.stat().st_size if log.exists() else 0
    while True:
        if not warned and (why := full(fleet.server, write=False)):
            say(f"warning: {why}; until there is space, the run cannot continue, and its state here may be old")
            warned = True
        status = fleet.exchanged("status.json")
        over = status.get("run") != name or _is_over(status) or not fleet.serving()
        if log.exists():
            with log.open(encoding="utf-8") as file:
                file.seek(shown)
                for line in file:
                    say(line.rstrip("\n"))
                shown = file.tell()
        if over:
            return status
        time.sleep(0.5)
