"""A run with the clients of a fleet: the same rounds, folder and report as everywhere, with clients that come and go."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
from flwr.serverapp import Grid

from fedqssl.config import load_config, load_run_config, to_toml
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, ServerData
from fedqssl.deploy.keys import public_keys
from fedqssl.deploy.roster import Roster, ServerImages, first_model, read_roster, refusal, roster_json
from fedqssl.deploy.watching import FleetWatch
from fedqssl.engines.flower.engine import FlowerEngine
from fedqssl.engines.flower.exchange import Exchange, ExchangeError
from fedqssl.engines.flower.patience import Patience
from fedqssl.engines.flower.wire import Capabilities
from fedqssl.federated.context import Context
from fedqssl.files import read_json_or_none as read_json
from fedqssl.files import write_json
from fedqssl.reporting import finished_report
from fedqssl.runs.describe import describe_data
from fedqssl.runs.equipment import Equipment, pool_of
from fedqssl.runs.folder import Checkpoint, RunFolder
from fedqssl.runs.lifecycle import Logged, check_model, check_surroundings, environment, play_to_end
from fedqssl.runs.progress import Progress
from fedqssl.runs.result import RunResult
from fedqssl.runs.round import first_checkpoint, server_learning_rate
from fedqssl.units import counted

POLL = 0.5
ANSWER = 60.0
"""Seconds within which a connected client reports its capabilities; a client that is training answers later."""
PATIENCE = 300.0
"""Seconds until a client that did not answer, or may not take part, is asked again if the run has enough others."""
RETURN = 180.0
"""Seconds for which a resumed run waits for its earlier clients: without them its results would differ."""


class FleetRun:
    """One run, from the settings written by ``deploy start``, or from its last checkpoint."""

    def __init__(self, grid: Grid, fleet: Fleet, name: str, data: ServerData) -> None:
        self.exchange, self.fleet, self.name = Exchange(grid, POLL, apart=True), fleet, name
        self.data, self.folder = data, RunFolder(fleet.runs / name)
        self.events = Events(fleet.server / "log.jsonl")
        self.config = load_config(fleet.runs / f"{name}.toml")
        self.roster: Roster = {}
        self.refused: dict[str, str] = {}
        self.ask_again: dict[str, float] = {}
        self.awaited: tuple[list[str], float] = [], 0.0
        self._awaited_file = self.folder.path / "awaited.json"
        self.round, self.totals = 0, {"up": dict[str, int](), "down": dict[str, int]()}

    def play(self, shown: Progress) -> RunResult:
        """Run to the end; errors are written to ``status.json`` before they are raised."""
        try:
            result = self._play(shown)
        except BaseException as error:
            # without the server there is no run, and when the server is back, it resumes the run
            state = "interrupted" if isinstance(error, (httpx.TransportError, ExchangeError)) else "failed"
            with suppress(OSError):  # of a full disk, which must not replace the error that matters
                self._status(state, " ".join(str(error).split()) or type(error).__name__)
            raise
        self.round, ends = result.rounds, result.clients.items()
        self.totals = {"up": {n: c.bytes_up for n, c in ends}, "down": {n: c.bytes_down for n, c in ends}}
        self._status("finished")
        return result

    def _play(self, shown: Progress) -> RunResult:
        progress = Logged(shown, self.folder)
        known = (self.folder.path / "config.toml").exists()
        if known:
            self.config = load_run_config(self.folder.path)
        images = ServerImages(self.data, self.config.image_size)
        if not known:
            own = {"buffer": self.data.buffer, "buffer_images": len(images.public), "buffer_ratio": None}
            self.config = self.config.model_copy(update=own)
        if known:
            self.roster = read_roster(read_json(self.folder.path / "roster.json"))
            self._check_images(images.context(self.config, self.roster))
            check_surroundings(self.config, self.folder, shown)
            self._reached(self.folder.latest())
            self._awaited_file.unlink(missing_ok=True)
        before = dict(self.roster)
        run, context = self._identity(), images.context(self.config, self.roster)
        check_model(context)
        engine = FlowerEngine(context, run, self.exchange, shown.tick)
        engine.watch = watch = self._watch(engine, progress)
        self._wait(engine, progress, before)
        done = self.folder.latest()
        if done is not None and done.rounds_done >= self.config.rounds:  # too late to join
            self.roster = {name: told for name, told in self.roster.items() if name in done.payloads}
        context = images.context(self.config, self.roster)
        if known:
            self._write_clients(context)  # a killed server may have written only some of them
        else:
            self._create(context)
        with self.folder.locked(), pool_of(context, shown, self.config.workers) as pool:
            checkpoint = self.folder.latest() or first_checkpoint(context)

            def arrivals(context: Context, checkpoint: Checkpoint) -> tuple[Context, Checkpoint]:
                self._wait(engine, progress)
                new = [name for name in self.roster if name not in checkpoint.payloads]
                if new:
                    context = images.context(self.config, self.roster)
                    checkpoint = self._welcome(context, checkpoint, new, progress)
                self._reached(checkpoint)
                self._status("running")
                watch.what = f"round {checkpoint.rounds_done + 1}"
                return context, checkpoint

            def accuracies(context: Context, payloads: Mapping[str, bytes]) -> dict[str, float]:
                watch.what, watch.evaluating = "the evaluation", True
                found = engine.accuracies(context, payloads)
                for name, why in engine.unserved.items():
                    progress.say(f"warning: {name} did not receive its final model: {why}")
                    self.events.note("final model not delivered", client=name, why=why)
                for name, told in engine.unbelievable.items():
                    progress.say(
                        f"warning: {name} reports an accuracy of {told:g}, which is not between 0 and 1; left out"
                    )
                    self.events.note("accuracy left out", client=name, accuracy=repr(told))
                return found

            equipment = Equipment(engine, pool, self.folder, progress, arrivals, accuracies)
            result = play_to_end(context, checkpoint, equipment)
        progress.say(finished_report(self.folder.path))
        return result

    def _reached(self, checkpoint: Checkpoint | None) -> None:
        """Note how far the run is, for its status."""
        if checkpoint is not None:
            self.round, self.totals = checkpoint.rounds_done, vars(checkpoint.totals)

    def _watch(self, engine: FlowerEngine, progress: Progress) -> FleetWatch:
        return FleetWatch(self.fleet, Patience(self.config.deadline), self._await, progress.say)

    def _identity(self) -> str:
        """The run's own id, by which clients recognise a repeated round."""
        path = self.fleet.runs / f"{self.name}.id.json"
        if read_json(path) is None:
            write_json(path, secrets.token_hex(8))
        return str(read_json(path))

    def _check_images(self, context: Context) -> None:
        """Refuse to resume with another buffer: no single run would correspond to the result."""
        noted = read_json(self.folder.path / "environment.json") or {}
        if noted.get("images_sha256") != environment(context)["images_sha256"]:
            raise FleetError(
                f"the server's images have changed since {self.name} began: restore them, or start with --new"
            )

    def _create(self, context: Context) -> None:
        """Write the files of a new run; config.toml last, as for every run."""
        self.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        facts = environment(context) | {"clients": {n: _facts(told) for n, told in sorted(self.roster.items())}}
        self.folder.write("environment.json", json.dumps(facts, indent=1) + "\n")
        self._write_clients(context)

    def _write_clients(self, context: Context) -> None:
        self.folder.write("partition.json", json.dumps(context.partition_json()) + "\n")
        self.folder.write("data.json", json.dumps(describe_data(context)) + "\n")
        write_json(self.folder.path / "roster.json", roster_json(self.roster))
        self.folder.write("config.toml", to_toml(context.config))

    def _welcome(self, context: Context, checkpoint: Checkpoint, new: list[str], progress: Progress) -> Checkpoint:
        lr = server_learning_rate(self.config, min(checkpoint.rounds_done, self.config.rounds - 1))
        payloads = dict(checkpoint.payloads)
        for name in new:
            told = self.roster[name]
            progress.say(f"{name} joins with {counted(told.bits, 'bit')} and {counted(told.samples, 'image')}")
            payloads[name] = first_model(context, checkpoint, self.roster[name].bits, lr)
        self._write_clients(context)
        return replace(checkpoint, payloads=payloads)

    def _wait(self, engine: FlowerEngine, progress: Progress, before: Collection[str] = ()) -> None:
        """Wait until enough clients are connected, and for a while also for those of ``before``.

        Afterwards ``engine`` knows all of them.
        """
        told, end = False, time.monotonic() + RETURN
        while True:
            self._look(engine, progress)
            missing = sorted(set(before) - set(engine.nodes))
            if len(engine.nodes) >= self.config.min_clients and (not missing or time.monotonic() > end):
                return
            if not told:
                there = f"{len(engine.nodes)} of {max(self.config.min_clients, len(before))} connected"
                who = f"; expected back: {', '.join(missing)}" if missing else ""
                progress.say(f"waiting for clients: {there}{who}")
                told = True
            self._status("waiting")
            time.sleep(POLL)

    def _look(self, engine: FlowerEngine, progress: Progress) -> None:
        """Ask newly connected clients for their capabilities, and update the clients that ``engine`` knows."""
        keys = {key: name for name, key in public_keys(self.fleet).items()}
        here = {keys[n.public_key]: n.node_id for n in self.exchange.grid.get_nodes() if n.public_key in keys}
        enough = len(here.keys() & engine.known.keys()) >= self.config.min_clients
        now = time.monotonic()
        self.ask_again = {name: then for name, then in self.ask_again.items() if name in here}
        unknown = {
            name: node
            for name, node in here.items()
            if name not in engine.known and not (enough and now < self.ask_again.get(name, 0.0))
        }
        for name, told in engine.discover(unknown, ANSWER).items():
            self.ask_again[name] = now + PATIENCE  # so that one who never answers does not hold up every round
            self._take(engine, progress, name, told)
        engine.nodes = {name: node for name, node in here.items() if name in engine.known}

    def _take(self, engine: FlowerEngine, progress: Progress, name: str, told: Capabilities | str) -> bool:
        """Let a client take part if what it told, or why it told nothing, allows it; returns whether it may."""
        why = told if isinstance(told, str) else refusal(name, told, self.roster.get(name))
        if why is not None or isinstance(told, str):
            if self.refused.get(name) != why:
                progress.say(f"warning: {name} cannot take part: {why}")
                self.events.note("client refused", client=name, why=why)
            self.refused[name] = str(why)
            return False
        self.refused.pop(name, None)
        engine.known[name] = self.roster[name] = told
        self.events.note("client joined", client=name, bits=told.bits, images=told.samples, version=told.version)
        return True

    def _await(self, names: list[str], since: float) -> None:
        """Tell ``deploy status`` and the report whom the round is waiting for."""
        self.awaited = names, since
        self._status("running")
        if names:
            write_json(self._awaited_file, {"clients": names, "since": since})
        else:
            self._awaited_file.unlink(missing_ok=True)

    def _status(self, state: str, error: str | None = None) -> None:
        """Update ``status.json`` for ``deploy status``; the supervisor's ``id`` is kept."""
        path = self.fleet.server / "status.json"
        before = read_json(path) or {}
        clients: dict[str, Any] = {
            name: {
                "bits": told.bits,
                "images": told.samples,
                "version": told.version,
                "bytes_up": self.totals["up"].get(name, 0),
                "bytes_down": self.totals["down"].get(name, 0),
            }
            for name, told in sorted(self.roster.items())
        }
        about = {"run": self.name, "state": state, "error": error, "round": self.round, "rounds": self.config.rounds}
        more = {"folder": str(self.folder.path), "clients": clients, "refused": self.refused, "time": time.time()}
        awaited, since = self.awaited if state == "running" else ([], 0.0)
        more |= {"awaited": awaited, "awaited_since": since}
        write_json(path, {"id": before.get("id"), **about, **more})


def _facts(told: Any) -> dict[str, str]:
    return {"fedqssl": told.version, "machine": told.architecture}
