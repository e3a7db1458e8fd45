"""``engine = "flower-sim"``: every client is a Flower node whose ClientApp runs in Ray's processes, here or on a Ray cluster.

``workers`` clients train at the same time, with ``client_cpus`` cores each; with ``RAY_ADDRESS`` set, as many as the cluster
holds. Each process reads the data set for itself, so it must be in the same place on every machine.
"""

from __future__ import annotations

import functools
import math
import os
import queue
import threading
import uuid
from types import TracebackType

from flwr.app import Context as FlowerContext
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedqssl import accelerators
from fedqssl.accelerators import DeviceError, resolve
from fedqssl.config import RunConfig
from fedqssl.data.registry import absolute
from fedqssl.engines.flower import hush
from fedqssl.engines.flower.client import client_app
from fedqssl.engines.flower.engine import FlowerEngine
from fedqssl.engines.flower.exchange import Exchange, ExchangeError
from fedqssl.engines.flower.simulated import simulated_client
from fedqssl.engines.pool import Tick
from fedqssl.federated.context import Simulation

START = 300.0
"""Seconds that Ray may take to start and the clients to read their data."""


def client_gpus(config: RunConfig) -> float:
    """The share of a GPU that Ray reserves for a client; it hides GPUs from clients that have none reserved.

    Raises:
        DeviceError: one of several GPUs is named. Each client sees a single one, which Ray chose.
    """
    on_gpu = resolve(config.device).type == "cuda"
    name, _, index = config.device.partition(":")
    if index and accelerators.gpus() > 1:
        raise DeviceError(
            f"device={config.device}, but with engine=flower-sim Ray shares the GPUs out; "
            f"use device={name} and set {accelerators.VISIBLE}={index}"
        )
    return config.client_gpus or (1 / config.workers_per_gpu if on_gpu else 0.0)


class FlowerSimulation(FlowerEngine):
    """Ray starts on entering this context manager and ends on leaving it."""

    def __init__(self, simulation: Simulation, workers: int, tick: Tick) -> None:
        super().__init__(simulation, uuid.uuid4().hex, None, tick)
        self.simulation, self.workers = simulation, workers
        self._gpus = client_gpus(simulation.config)
        self._grids: queue.Queue[Grid] = queue.Queue()
        self._leave = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._simulate, name="flower-sim", daemon=True)

    def _simulate(self) -> None:
        """Flower's simulation, whose ServerApp does nothing but lend its Grid to the run."""
        app, config = ServerApp(), self.simulation.config
        config = config.model_copy(update={"data": absolute(config.data)})

        @app.main()
        def main(grid: Grid, context: FlowerContext) -> None:
            self._grids.put(grid)
            self._leave.wait()

        hush()
        resources: dict[str, dict[str, float]] = {
            "client_resources": {"num_cpus": config.client_cpus, "num_gpus": self._gpus},
            "init_args": {},
        }
        if not os.environ.get("RAY_ADDRESS"):
            resources["init_args"]["num_cpus"] = max(1, math.ceil(self.workers * config.client_cpus))
        try:
            run_simulation(
                app,
                client_app(functools.partial(simulated_client, config)),
                len(self.simulation.bits),
                backend_config=resources,  # type: ignore[arg-type]
            )
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> FlowerSimulation:
        try:
            self._thread.start()
            self._exchange = Exchange(self._grids.get(timeout=START), alive=self._thread.is_alive)
            self.meet(len(self.simulation.bits), START)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, (ExchangeError, queue.Empty)):
                raise ChildProcessError(f"Flower's simulation did not start ({_root(self._failure)})") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        if self._thread.ident is not None:
            self._thread.join(60)


def _root(error: BaseException | None) -> str:
    """The original error: Flower wraps it twice."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return "no answer" if error is None else " ".join(str(error).split())
