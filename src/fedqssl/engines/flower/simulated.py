"""A client of a simulation, as a Flower node: it has a part of the run's own data set, which its process reads for itself."""

from __future__ import annotations

import functools

import torch
from flwr.app import Context as FlowerContext

from fedqssl.config import RunConfig
from fedqssl.engines.flower.wire import Capabilities, Request
from fedqssl.engines.malloc import keep_freed_memory
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.context import Simulation, build_simulation
from fedqssl.federated.perform import perform


@functools.lru_cache(maxsize=1)
def _simulation(config: RunConfig) -> Simulation:
    """Built once per process."""
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    return build_simulation(config)


class SimulatedClient:
    """A client of the run's own partition; keeps nothing between rounds, like the in-process engine."""

    def __init__(self, config: RunConfig, number: int) -> None:
        self.simulation = _simulation(config)
        self.name = sorted(self.simulation.bits)[number]

    def capabilities(self) -> Capabilities:
        """What the server may know."""
        split = self.simulation.partition.clients[self.name]
        return Capabilities(self.name, self.simulation.bits[self.name], len(split.train), len(split.test))

    def train(self, request: Request, payload: bytes) -> tuple[bytes, ClientMetrics]:
        """Train a round."""
        return perform(request.job(trust=True), payload, self.simulation.client(self.name))

    def evaluate(self, request: Request, payload: bytes) -> float | None:
        """None: in a simulation the server has the labels and evaluates all clients' models itself."""
        return None


def simulated_client(config: RunConfig, context: FlowerContext) -> SimulatedClient:
    """The client that Flower's ``partition-id`` numbers."""
    return SimulatedClient(config, int(context.node_config["partition-id"]))


__all__ = ["SimulatedClient", "simulated_client"]
