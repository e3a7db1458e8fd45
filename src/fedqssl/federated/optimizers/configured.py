"""The server part of a run: its algorithm's, with the configured weights, optimiser, refinement and moving average."""

from __future__ import annotations

from dataclasses import replace

from fedqssl.config import ConfigError, RunConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.optimizers.adam import with_adam
from fedqssl.federated.optimizers.agreement import with_weights_by_agreement
from fedqssl.federated.optimizers.bits import with_weights_by_bits
from fedqssl.federated.optimizers.clip import with_clip
from fedqssl.federated.optimizers.clusters import check_clusters, with_clusters
from fedqssl.federated.optimizers.ema import with_ema
from fedqssl.federated.optimizers.embedding import with_embedding_check
from fedqssl.federated.optimizers.fedexp import with_fedexp
from fedqssl.federated.optimizers.fltrust import with_fltrust
from fedqssl.federated.optimizers.krum import with_krum
from fedqssl.federated.optimizers.mask import with_mask
from fedqssl.federated.optimizers.measured import with_measured_statistics
from fedqssl.federated.optimizers.median import with_median
from fedqssl.federated.optimizers.momentum import with_momentum
from fedqssl.federated.optimizers.private import check_private, with_client_privacy
from fedqssl.federated.optimizers.trimmed import with_trimmed_mean
from fedqssl.federated.server.validate import check_model
from fedqssl.federated.task import SUPERVISED

DEFAULT_LR = {"momentum": 1.0, "adam": 0.01, "fedexp": 3.0}
BY_BITS = {"bits": with_weights_by_bits, "mask": with_mask}
"""Ways of ``aggregation.weights`` that count rounding, which layers in floats do not have."""
ROBUST = {"median": with_median, "trimmed": with_trimmed_mean, "krum": with_krum, "clip": with_clip}
"""Of the clients' models alone."""
BY_BUFFER = {"fltrust": with_fltrust, "embedding": with_embedding_check}
"""These also look at the uploads themselves and at the buffer, so that they take the whole algorithm."""


def configured_server(algorithm: Algorithm, config: RunConfig) -> Server:
    """The algorithm's server part with what the settings put around it.

    ``aggregation.weights`` averages once more (or ``aggregation.robust`` does something else), ``server.optimizer`` steps
    from the model before the round towards the result, the algorithm refines it, ``aggregation.batch_norm``
    measures its statistics, ``server.ema`` averages over rounds, and ``clusters`` does all this once for every cluster.

    Raises:
        ConfigError: the algorithm aggregates nothing that could be stepped or averaged.
    """
    server, settings = _weighted(algorithm, config), config.server
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
    if config.aggregation.batch_norm == "buffer":
        if not algorithm.federates:
            raise ConfigError(
                f"{algorithm.name} has no aggregated model, so aggregation.batch_norm must stay 'average'"
            )
        server = with_measured_statistics(server)
    server = with_ema(server, settings.ema) if settings.ema else server
    if config.clusters == 1:
        return server
    check_clusters(algorithm, config)
    return with_clusters(server, algorithm, config)


def _weighted(algorithm: Algorithm, config: RunConfig) -> Server:
    """The server part with ``aggregation.weights``, ``aggregation.robust`` or ``privacy.client_epsilon``."""
    if config.privacy.client_epsilon is not None:
        check_private(algorithm, config)
        return with_client_privacy(algorithm.server, config.privacy)
    chosen, robust = config.aggregation.weights, config.aggregation.robust
    if robust != "none":
        if not (algorithm.has_clients and algorithm.federates):
            raise ConfigError(f"{algorithm.name} averages no clients' models, so aggregation.robust must stay 'none'")
        if chosen != "algorithm":
            raise ConfigError(
                f"aggregation.weights = {chosen!r} averages, which aggregation.robust replaces; choose one"
            )
        return ROBUST[robust](algorithm.server) if robust in ROBUST else _by_buffer(algorithm, robust)
    if chosen == "algorithm":
        return algorithm.server
    if not (algorithm.has_clients and algorithm.federates):
        raise ConfigError(f"{algorithm.name} averages no clients' models, so aggregation.weights must stay 'algorithm'")
    if chosen == "agreement":
        return with_weights_by_agreement(algorithm.server)
    return BY_BITS[chosen](algorithm.server, config.lowbit.skip)


def _by_buffer(algorithm: Algorithm, robust: str) -> Server:
    """The server part with a word of ``BY_BUFFER``, where uploads can be read and the buffer's images can be trained on."""
    if algorithm.model_of is None and algorithm.check is not check_model:
        raise ConfigError(
            f"{algorithm.name} does not say how its uploads are read (model_of), which aggregation.robust = {robust!r} needs"
        )
    if robust == "fltrust" and algorithm.objective == SUPERVISED:
        raise ConfigError(
            f"{algorithm.name} trains with labels, and the server's buffer has none, so aggregation.robust cannot be 'fltrust'"
        )
    if robust == "embedding" and algorithm.check is not check_model:
        raise ConfigError(f"{algorithm.name}'s clients send no models, so aggregation.robust cannot be 'embedding'")
    return BY_BUFFER[robust](algorithm)


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
