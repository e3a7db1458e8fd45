"""Differential privacy of whole clients (McMahan et al., Learning differentially private recurrent language models, ICLR 2018).

With ``u_k = w_k - Q_k(w)``, what client k changed in the model that it received (``privacy.client_epsilon``):

    w <- w + 1/n (sum_{k in S} u_k min(1, C / |u_k|) + N(0, (2 C z)^2 I)),    C = ``privacy.clip``

S are the n clients that were drawn for the round; one whose upload is missing or refused counts as 0, and n stays. All count
alike: shares of images would say something about a client. The same client with any other images moves the sum by at most 2 C,
so that z is the noise multiplier under replacement of one client; the accountant (dp-accounting, Renyi differential privacy)
finds the smallest z for epsilon and delta over all rounds. It knows that clients are drawn without replacement; on real machines,
where they come and go, it counts on no such luck. What is measured (batch-norm statistics, activation ranges) is not taken from
clients at all but from the server's buffer.

Whatever is made of w later is covered: optimisers, training on the buffer, moving averages, device files. Not covered are what
the server sees and logs of single clients (their uploads, losses and names), and the buffer.
"""

from __future__ import annotations

import functools
import math
import secrets
from dataclasses import replace

import torch

from fedqssl.config import ConfigError, RunConfig
from fedqssl.config.sections import PrivacyConfig
from fedqssl.federated.algorithms.base import Algorithm, Arrived, Round, Server, ServerOperators, ServerState
from fedqssl.federated.optimizers.pseudo_gradient import step_from
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.validate import check_model
from fedqssl.federated.state import State
from fedqssl.lowbit.policy import is_statistic

SETTING = "privacy.client_epsilon"
LEAST = 0.1
"""Less noise than this is never added: it would hide nothing."""


def check_private(algorithm: Algorithm, config: RunConfig) -> None:
    """Raise ConfigError where a server looks at single clients, or where the accountant is missing."""
    why = None
    if not algorithm.needs_sums_only or algorithm.check is not check_model:
        why = f"{algorithm.name} looks at single models; use fed_refine or a plain average"
    elif algorithm.takes_turns:
        why = f"clients of {algorithm.name} take turns, which the accountant does not know; use fed_refine"
    elif (config.aggregation.weights, config.aggregation.robust) != ("algorithm", "none"):
        why = "aggregation.weights and aggregation.robust look at single models; leave them out"
    elif config.server.optimizer == "fedexp":
        why = "server.optimizer = 'fedexp' looks at single models; choose another"
    elif config.aggregation.batch_norm != "buffer":
        why = "batch-norm statistics of clients are not hidden; set aggregation.batch_norm=buffer"
    if why is not None:
        raise ConfigError(f"{SETTING} cannot be used: {why}")
    drawn = config.participants(config.clients)
    assert config.privacy.client_epsilon is not None
    noise_multiplier(config.privacy.client_epsilon, config.privacy.delta, config.rounds, config.clients, drawn)


@functools.lru_cache(maxsize=16)
def noise_multiplier(epsilon: float, delta: float, rounds: int, clients: int, drawn: int) -> float:
    """The smallest z whose so many rounds cost a client at most (epsilon, delta), with ``drawn`` of the clients in each.

    Raises:
        ConfigError: the accountant is not installed, or cannot prove so small an epsilon.
    """
    try:
        import dp_accounting
        from dp_accounting import mechanism_calibration, rdp
    except ImportError as error:
        raise ConfigError(f"{SETTING} needs dp-accounting: pip install 'fedqssl[privacy]'") from error

    def accountant() -> rdp.RdpAccountant:
        return rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)

    def run(z: float) -> dp_accounting.DpEvent:
        one = dp_accounting.GaussianDpEvent(z)
        if drawn < clients:
            one = dp_accounting.SampledWithoutReplacementDpEvent(clients, drawn, one)
        return dp_accounting.SelfComposedDpEvent(one, rounds)

    if accountant().compose(run(LEAST)).get_epsilon(delta) <= epsilon:
        return LEAST
    search = dp_accounting.LowerEndpointAndGuess(LEAST, 1.0)
    try:
        return float(dp_accounting.calibrate_dp_mechanism(accountant, run, epsilon, delta, search, tol=1e-3))
    except mechanism_calibration.NoBracketIntervalFoundError:
        raise ConfigError(f"{SETTING} = {epsilon:g} is less than the accountant can prove; ask for more") from None


def clipped(update: State, most: float) -> State:
    """``u min(1, C / |u|)`` in float64."""
    length = math.sqrt(math.fsum(float(x.double().square().sum()) for x in update.values()))
    factor = min(1.0, most / length) if length > 0 else 1.0
    return {key: factor * x.double() for key, x in update.items()}


def with_client_privacy(server: Server, privacy: PrivacyConfig) -> Server:
    """The server part whose aggregate hides single clients."""

    def private(state: ServerState, arrived: Arrived, operators: ServerOperators) -> tuple[ServerState, Round]:
        state, found = server(state, arrived, operators)
        before, drawn = operators.before(), len(arrived.clients)
        total = {key: torch.zeros_like(x, dtype=torch.float64) for key, x in before.items() if not is_statistic(key)}
        for name in sorted(arrived.payloads):
            received, sent = (operators.read({name: data[name]})[name] for data in (arrived.sent, arrived.payloads))
            for key, x in clipped(step_from(received, sent), privacy.clip).items():
                total[key] += x
        draws, sigma = _draws(operators), 2 * privacy.clip * _multiplier(privacy, operators, drawn)
        for key in sorted(total):
            total[key] += sigma * torch.randn(total[key].shape, generator=draws, dtype=torch.float64)
        w = {key: (before[key].double() + x / drawn).float() for key, x in total.items()}
        weights = dict.fromkeys(sorted(arrived.payloads), 1 / drawn)
        return state, replace(found, aggregate={**before, **w}, weights=weights, parts={})

    return private


def _multiplier(privacy: PrivacyConfig, operators: ServerOperators, drawn: int) -> float:
    context = operators.context
    clients = len(context.bits) if context.simulated else drawn
    assert privacy.client_epsilon is not None
    return noise_multiplier(privacy.client_epsilon, privacy.delta, context.config.rounds, clients, drawn)


def _draws(operators: ServerOperators) -> torch.Generator:
    """Noise that can be repeated in a simulation; on real machines, where clients know the seed, nobody can."""
    context = operators.context
    if context.simulated:
        return generator(context.config.seed, "privacy", operators.round_number)
    return torch.Generator().manual_seed(secrets.randbits(63))


__all__ = ["check_private", "clipped", "noise_multiplier", "with_client_privacy"]
