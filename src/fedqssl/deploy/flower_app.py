"""``flwr run``: our runs as Flower's users start theirs. Nothing here needs more of Flower than its documented modules.

``fedqssl deploy flower-app`` writes an app whose two components are :func:`server_app` and :func:`client_app_of_run`. Without
``buffer`` in its settings it is a simulation: node number i is client number i of the preset. With ``buffer`` every SuperNode is
a client of its own, with its own images. All state is in our files: the run's folder, and a folder of each client.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedqssl.config import RunConfig, load_config, to_toml
from fedqssl.config.schema import parse_bits
from fedqssl.data.registry import HOLDOUT, SPLITS, absolute, is_labeled, load_dataset
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.control import next_name, requested, unfinished
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import NAME, Fleet, FleetError, ServerData, check_name
from fedqssl.deploy.fleet_run import ANSWER, PATIENCE, FleetRun
from fedqssl.deploy.store import Store
from fedqssl.deploy.watching import FleetWatch
from fedqssl.engines.flower.client import ClientProtocol, client_app, discreet
from fedqssl.engines.flower.engine import FlowerEngine
from fedqssl.engines.flower.exchange import Exchange, ExchangeError
from fedqssl.engines.flower.patience import Patience
from fedqssl.engines.flower.simulated import simulated_client
from fedqssl.engines.pool import Pool, Tick
from fedqssl.federated.context import Simulation
from fedqssl.files import write_atomically
from fedqssl.reporting import finished_report
from fedqssl.runs import lifecycle
from fedqssl.runs.find import next_folder
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.progress import Progress
from fedqssl.runs.result import RunResult

START = 300.0
"""Seconds within which the nodes of a simulation must be there and have read their data."""
Settings = Mapping[str, Any]
"""A run's or a node's settings, as Flower hands them over: texts, numbers and truth values."""


def _text(settings: Settings, key: str) -> str:
    return str(settings.get(key, "") or "").strip()


def _home(settings: Settings) -> Path:
    """Where runs are kept: Flower's processes start in folders of their own, so the path must be absolute."""
    home = Path(_text(settings, "out")).expanduser()
    if not home.is_absolute():
        raise FleetError("the app's setting 'out' must be an absolute path: set it in pyproject.toml")
    return home


def run_config(settings: Settings) -> RunConfig:
    """The run's configuration: ``preset``, changed by ``settings``, words like those of ``fedqssl run``."""
    config = load_config(_text(settings, "preset") or "quickstart", _text(settings, "settings").split())
    return config.model_copy(update={"engine": "flower-sim", "data": absolute(config.data)})


# The client's side


@functools.lru_cache(maxsize=8)
def _own_client(name: str, bits: int, data: str, state: Path) -> FleetClient:
    """A client with its own images; kept for as long as Flower keeps this process."""
    holdout = HOLDOUT if is_labeled(data, "error") else 0.0

    def read(size: int) -> tuple[Any, Any]:
        train, test = (load_dataset(data, split, None, "error", size, holdout=holdout) for split in SPLITS)
        return train, test

    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FleetClient(name, bits, *read(32), Store(state / "state"), Events(state / "log.jsonl"), False, read)


def client_of(context: Context) -> ClientProtocol:
    """The client that a node is: with ``data`` in its ``--node-config`` one of its own, else one of the simulation's."""
    node = context.node_config
    if not _text(node, "data"):
        if "partition-id" not in node:
            raise FleetError('a SuperNode needs --node-config \'name="car-17" bits=4 data="folder:/photos"\'')
        return simulated_client(run_config(context.run_config), context)
    name, (bits,) = check_name(_text(node, "name")), parse_bits(int(node.get("bits") or 0))
    torch.set_num_threads(int(node.get("threads") or 1))
    state = Path(_text(node, "state") or f"~/.fedqssl/{name}").expanduser()
    return _own_client(name, bits, _text(node, "data"), state)


def client_app_of_run() -> ClientApp:
    """The app's client component."""
    return client_app(client_of, [discreet])


# The server's side: a simulation


class GridEngine(FlowerEngine):
    """The clients of a simulation that somebody else, ``flwr run``, has started."""

    def __init__(self, simulation: Simulation, grid: Grid, tick: Tick) -> None:
        super().__init__(simulation, uuid.uuid4().hex, Exchange(grid, apart=True), tick)
        self.wanted = len(simulation.bits)

    def __enter__(self) -> GridEngine:
        try:
            self.meet(self.wanted, START)
        except ExchangeError as error:
            raise FleetError(f"{error}; {self._how()}") from error
        if len(self.nodes) != self.wanted:
            raise FleetError(f"there are {len(self.nodes)} nodes for {self.wanted} clients; {self._how()}")
        return self

    def _how(self) -> str:
        return f"start it with flwr run --federation-config num-supernodes={self.wanted}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flower ends its nodes itself."""


@contextmanager
def _carried_by(grid: Grid) -> Iterator[None]:
    """Have runs of Flower's simulation use these nodes, instead of starting a simulation of their own."""
    before = lifecycle.ENGINES["flower-sim"]

    def engine(pool: Pool[Simulation]) -> GridEngine:
        return GridEngine(pool.shared, grid, pool.tick)

    lifecycle.ENGINES["flower-sim"] = engine
    try:
        yield
    finally:
        lifecycle.ENGINES["flower-sim"] = before


def _unfinished(home: Path, stem: str, config: RunConfig) -> Path | None:
    """The newest run of these settings that has no result."""
    for folder in sorted(home.glob(f"{stem}-*"), key=lambda f: f.stat().st_mtime, reverse=True):
        noted = RunFolder(folder).read_json("environment.json") if (folder / "config.toml").exists() else None
        same = isinstance(noted, dict) and noted.get("settings") == lifecycle.settings_digest(config)
        if same and not (folder / "result.json").exists():
            return folder
    return None


def play_simulation(grid: Grid, settings: Settings, progress: Progress) -> RunResult:
    """A run of the preset's own clients, or the rest of it; the same bytes as ``fedqssl run``."""
    config, home = run_config(settings), _home(settings)
    stem = Path(_text(settings, "preset") or "quickstart").stem
    home.mkdir(parents=True, exist_ok=True)
    with _carried_by(grid):
        if (known := _unfinished(home, stem, config)) is not None:
            return lifecycle.resume(known, progress=progress)
        return lifecycle.start(config, next_folder(stem, home), progress=progress)


# The server's side: machines


class AppWatch(FleetWatch):
    """Notices who is back by Flower's list of nodes."""

    def __init__(self, run: AppRun, engine: FlowerEngine, progress: Progress) -> None:
        super().__init__(run.fleet, Patience(run.config.deadline), run._await, progress.say)
        self.engine, self.there, self.counts = engine, set[str](), dict[str, int]()

    def _joined(self) -> dict[str, int]:
        ids = set(self.engine.exchange.grid.get_node_ids())
        there = {name for name, node in self.engine.nodes.items() if node in ids}
        for name in there - self.there:
            self.counts[name] = self.counts.get(name, 0) + 1
        self.there = there
        return dict(self.counts)


class AppRun(FleetRun):
    """A run whose clients are SuperNodes. They tell their names themselves: Flower's keys are not in its public interface."""

    def __init__(self, grid: Grid, fleet: Fleet, name: str, data: ServerData) -> None:
        super().__init__(grid, fleet, name, data)
        self.names: dict[int, str] = {}

    def _watch(self, engine: FlowerEngine, progress: Progress) -> FleetWatch:
        return AppWatch(self, engine, progress)

    def _look(self, engine: FlowerEngine, progress: Progress) -> None:
        here, now = set(self.exchange.grid.get_node_ids()), time.monotonic()
        enough = len([node for node in here if node in self.names]) >= self.config.min_clients
        unknown = {
            str(node): node
            for node in sorted(here)
            if node not in self.names and not (enough and now < self.ask_again.get(str(node), 0.0))
        }
        for key, told in engine.discover(unknown, ANSWER).items():
            self.ask_again[key] = now + PATIENCE
            if isinstance(told, str) or not NAME.fullmatch(told.name):
                why = told if isinstance(told, str) else "its name is not one that a folder can have"
                self._take(engine, progress, f"node {key}", why)
                continue
            others = [node for node, name in self.names.items() if name == told.name and node in here]
            why_not = f"another node is called {told.name}, too" if others else told
            if self._take(engine, progress, told.name if not others else f"node {key}", why_not):
                self.names = {node: name for node, name in self.names.items() if name != told.name}
                self.names[int(key)] = told.name
        engine.nodes = {name: node for node, name in self.names.items() if node in here}


def play_on_machines(grid: Grid, settings: Settings, progress: Progress) -> RunResult:
    """A run of the SuperNodes that are connected, or the rest of it; as :mod:`fedqssl.deploy.fleet_run`."""
    fleet = Fleet(_home(settings), "")
    for folder in (fleet.server, fleet.runs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    preset = _text(settings, "preset") or "quickstart"
    wanted = to_toml(requested(preset, _text(settings, "settings").split()))
    name = unfinished(fleet)
    if name is None:
        name = next_name(fleet.runs, Path(preset).stem)
        write_atomically(fleet.runs / f"{name}.toml", wanted.encode())
    elif (fleet.runs / f"{name}.toml").read_text(encoding="utf-8") != wanted:
        raise FleetError(f"{name} is not finished and has other settings; restore them, or set another 'out'")
    labeled = _text(settings, "eval")
    data = ServerData(absolute(_text(settings, "buffer")), absolute(labeled) if labeled else None)
    return AppRun(grid, fleet, name, data).play(progress)


def play(grid: Grid, settings: Settings, progress: Progress) -> RunResult:
    """What the app's settings say."""
    if _text(settings, "buffer"):
        return play_on_machines(grid, settings, progress)
    result = play_simulation(grid, settings, progress)
    progress.say(finished_report(result.folder))
    return result


def server_app() -> ServerApp:
    """The app's server component."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        result = play(grid, context.run_config, Progress(functools.partial(print, flush=True)))
        Console().print(result.table())

    return app


__all__ = ["client_app_of_run", "play", "server_app"]
