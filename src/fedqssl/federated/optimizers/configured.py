"""The server part of a run: its algorithm's, with the configured optimiser, the refinement and the moving average."""

from __future__ import annotations

from dataclasses import replace

from fedqssl.config import ConfigError, RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.optimizers.adam import with_adam
from fedqssl.federated.optimizers.ema import with_ema
from fedqssl.federated.optimizers.fedexp import with_fedexp
from fedqssl.federated.optimizers.momentum import with_momentum

DEFAULT_LR = {"momentum": 1.0, "adam": 0.01, "fedexp": 3.0}


def configured_server(algorithm: Algorithm, config: RunConfig) -> Server:
    """``server.optimizer`` steps from the model before the round, the algorithm refines the result, ``server.ema`` averages it.

    Raises:
        ConfigError: the algorithm aggregates nothing that could be stepped or averaged.
    """
    server, settings = algorithm.server, config.server
    if not algorithm.federates and (settings.optimizer != "none" or settings.ema):
        raise ConfigError(f"{algorithm.name} has no aggregated model, so server.optimizer and server.ema must stay off")
    if settings.optimizer != "none":
        lr = settings.optimizer_lr or DEFAULT_LR[settings.optimizer]
        if settings.optimizer == "fedexp":
            if not algorithm.has_clients:
                raise ConfigError(f"{algorithm.name} averages no clients' models, so server.optimizer cannot be fedexp")
            server = with_fedexp(server, lr)
        else:
            wrap = with_momentum if settings.optimizer == "momentum" else with_adam
            server = wrap(server, settings.momentum, lr)
    server = _refined(server)
    return with_ema(server, settings.ema) if settings.ema else server


def _refined(server: Server) -> Server:
    """The server part with ``Round.refine`` applied to its aggregate."""

    def refined(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        if found.refine is None or found.aggregate is None:
            return state, found
        w, loss = found.refine(found.aggregate)
        return state, replace(found, aggregate=w, server_loss=loss, refine=None)

    return refined


__all__ = ["configured_server"]
