"""One round of Algorithm 1, from a checkpoint to the next: clients, then server; and its line in ``metrics.jsonl``."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fedqssl.config import RunConfig
from fedqssl.engines.engine import Engine, Replies
from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms import Arrived, Round
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.context import Context
from fedqssl.federated.finish import finished, full_precision
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.optimizers.clusters import models_of
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.server.plausible import check_values
from fedqssl.federated.server_state import ServerState
from fedqssl.federated.state import State, read_payload, read_state
from fedqssl.lowbit import ContainerError, to_bytes
from fedqssl.runs.clock import TIME, Clock
from fedqssl.runs.evaluate import collapse_monitor, knn_monitor
from fedqssl.runs.folder import Checkpoint, RunError, RunTotals
from fedqssl.runs.metrics import LARGEST
from fedqssl.runs.rescue import change, without_culprits
from fedqssl.units import counted


def learning_rate(config: RunConfig, round_number: int) -> float:
    """The clients' learning rate in a round: constant, half a cosine, or x0.3 at 30, 60 and 90% of the rounds."""
    done = round_number / config.rounds
    if config.lr_schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * done))
    if config.lr_schedule == "step":
        return config.lr * 0.3 ** sum(done >= mark for mark in (0.3, 0.6, 0.9))
    return config.lr


def server_learning_rate(config: RunConfig, round_number: int) -> float:
    """The server's learning rate in a round: ``server.lr``, or the clients'."""
    return learning_rate(config, round_number) if config.server.lr is None else config.server.lr


def sampled(context: Context, round_number: int, there: Collection[str] | None = None) -> list[str]:
    """Names of the clients that take part in a round: a fraction of all, at least ``min_clients``, of those that are there.

    They are drawn anew in every round; or, if the algorithm's clients take turns, from a random order of all, which is used up
    before the next one is drawn. Its last round may repeat clients, so that every round has as many.
    """
    names = sorted(context.bits)
    wanted = context.config.participants(len(names))
    drawn, first = round_number, 0
    if context.algorithm.takes_turns:
        drawn, turn = divmod(round_number, -(-len(names) // wanted))
        first = min(turn * wanted, len(names) - wanted)
    order = torch.randperm(len(names), generator=generator(context.config.seed, "sampling", drawn)).roll(-first)
    found = [names[i] for i in order.tolist() if there is None or names[i] in there]
    return sorted(found[:wanted])


def first_checkpoint(context: Context) -> Checkpoint:
    """One float initialisation, quantized to each bitwidth."""
    made = {b: to_bytes(context.task.converted(b)) for b in sorted(set(context.bits.values()))}
    payloads = {name: made[b] for name, b in context.bits.items()}
    full = context.task.converted(32)
    return Checkpoint(0, payloads, to_bytes(full), RunTotals(), context.algorithm.init(read_state(full)))


def play_round(
    context: Context,
    engine: Engine,
    pool: Pool[Any],
    before: Checkpoint,
    round_number: int,
    clock: Clock | None = None,
) -> tuple[Checkpoint, dict[str, Any]]:
    """One round; the checkpoint after it and its line of metrics.

    With a simulated clock, its clients are those that are there, and only those that reply in time are trained.
    """
    if clock is None:
        return _play(context, engine, pool, before, round_number, sampled(context, round_number), {})
    state = dict(before.server_state)
    timed = clock.play_at(state.pop(TIME, 0.0), lambda there: sampled(context, round_number, there))
    before = replace(before, server_state=state)
    checkpoint, line = _play(context, engine, pool, before, round_number, timed.names, timed.failed)
    return replace(checkpoint, server_state={**checkpoint.server_state, TIME: timed.end}), line | timed.line()


def _play(
    context: Context,
    engine: Engine,
    pool: Pool[Any],
    before: Checkpoint,
    round_number: int,
    names: list[str],
    late: Mapping[str, str],
) -> tuple[Checkpoint, dict[str, Any]]:
    """A round of these clients, some of whom will not reply, for the given reasons."""
    config, algorithm, lr = context.config, context.algorithm, learning_rate(context.config, round_number)
    sent = {n: before.payloads[n] for n in names} if algorithm.has_clients else {}
    began = time.monotonic()
    in_time = {n: payload for n, payload in sent.items() if n not in late}
    replies, failed = engine.train_clients(in_time, context.job(round_number, lr))
    server_began = time.monotonic()
    valid, rejected, implausible, read = _validated(context, replies, sent)
    rejected |= {**failed, **late}
    too_few = bool(late) and len(valid) + len(implausible) < config.min_clients
    if not too_few:
        _enough(context, round_number, len(valid) + len(implausible), rejected)
    operators = ServerOperators(
        context, pool, round_number, lr, server_learning_rate(config, round_number), before.aggregated, read
    )
    rejected |= implausible
    after = (
        _kept(context, before, _too_few(len(valid) + len(implausible), config.min_clients))
        if too_few
        else _after(operators, before, _arrived(context, names, valid, sent))
    )
    rejected |= after.round.rejected
    seconds = {name: metrics.seconds for name, (_, metrics) in sorted(replies.items())}
    spent = sum(seconds.values()), time.monotonic() - server_began
    received = {n: payload for n, (payload, _) in replies.items()}
    if not algorithm.federates:  # every client's model stays where it is
        sent, received = {}, {}
    totals = before.totals.plus(sent, received, *spent)
    payloads = {**before.payloads, **after.payloads}
    checkpoint = Checkpoint(round_number + 1, payloads, after.aggregated, totals, after.state)
    line = _line(round_number + 1, lr, after.round, valid) | {"rejected": rejected}
    line |= {"bytes_up": sum(map(len, received.values())), "bytes_down": sum(map(len, sent.values()))}
    line |= {"client_seconds": spent[0], "server_seconds": spent[1]}
    line |= {"round_rejected": after.kept} if after.kept else {}
    slowest = max(seconds.values(), default=0.0)
    line |= {"slowest_client_seconds": slowest, "clients_wall_seconds": server_began - began}
    line |= {"training_seconds": seconds}
    return checkpoint, line | _monitors(context, after.served, round_number + 1)


@dataclass(frozen=True, eq=False)
class _After:
    """The outcome of a round: the server's state, the next models to send, and the model to evaluate, or those of all clusters.

    ``kept`` says why the round keeps the model before it, if it does.
    """

    round: Round
    state: ServerState
    payloads: Mapping[str, bytes]
    aggregated: bytes | None
    served: tuple[fx.GraphModule, ...]
    kept: str | None = None


def _after(operators: ServerOperators, before: Checkpoint, arrived: Arrived) -> _After:
    """The server's part, without uploads that make it impossible; without enough others, the model before the round."""
    context = operators.context
    assert isinstance(context, Context)
    least = context.config.min_clients if context.algorithm.has_clients else 0

    def play(some: Arrived) -> _After:
        if len(some.payloads) < least:
            raise NothingToAggregateError(_too_few(len(some.payloads), least))
        return _server_round(operators, before.server_state, some)

    # With noise that hides single clients, whom to leave out must not be read from what the others sent.
    kept = least if context.config.privacy.client_epsilon is None else len(arrived.payloads)
    after, culprits, why = without_culprits(play, arrived, lambda name: _change(context, name, arrived), kept)
    if after is None:
        if not context.algorithm.has_clients:
            raise RunError(
                f"round {operators.round_number + 1}: the server's training diverged ({why}); lower server.lr"
            )
        return _kept(context, before, f"{why}")
    rejected = {**culprits, **after.round.rejected}
    if least and len(arrived.payloads) - len(rejected) < least:
        return _kept(context, before, _too_few(len(arrived.payloads) - len(rejected), least), rejected)
    return replace(after, round=replace(after.round, rejected=rejected))


def _too_few(valid: int, least: int) -> str:
    return f"{counted(valid, 'valid update')}, fewer than min_clients = {least}"


def _change(context: Context, name: str, arrived: Arrived) -> float:
    received = read_payload(arrived.sent[name], context.bits[name], context.task)
    model = context.algorithm.model_in(arrived.payloads[name], received, context.bits[name], context.task)
    return 0.0 if model is None else change(received, model)


def _kept(context: Context, before: Checkpoint, why: str, rejected: Mapping[str, str] | None = None) -> _After:
    """The outcome of a round that changes nothing."""
    models = models_of(before.server_state).values() if before.aggregated is None else (before.aggregated,)
    served = tuple(full_precision(context.task, read_payload(model, 32, context.task)) for model in models)
    return _After(Round(None, rejected=rejected or {}), before.server_state, {}, before.aggregated, served, why)


def _server_round(operators: ServerOperators, state: ServerState, arrived: Arrived) -> _After:
    """The server's part: aggregate, then hand out; after the last round, the served model replaces the aggregate."""
    context = operators.context
    assert isinstance(context, Context)
    server = configured_server(context.algorithm, context.config)
    state, found = server(state, arrived, operators)
    if found.aggregate is None:
        served = () if found.clusters is None else tuple(found.clusters.served.values())
        return _After(found, state, found.payloads, None, served)
    made = finished(found, operators)
    return _After(found, state, made.payloads, made.aggregated, (made.served,))


def _enough(context: Context, round_number: int, valid: int, rejected: Mapping[str, str]) -> None:
    """Raise an error for a round with fewer valid updates than ``min_clients``."""
    least = context.config.min_clients
    if context.algorithm.has_clients and valid < least:
        reasons = "; ".join(f"{n}: {why}" for n, why in sorted(rejected.items()))
        raise RunError(
            f"round {round_number + 1} got {counted(valid, 'valid update')}, fewer than min_clients = {least} ({reasons})"
        )


def _monitors(context: Context, served: tuple[fx.GraphModule, ...], number: int) -> dict[str, Any]:
    """KNN accuracy and label-free indicators, in the rounds configured for them, if there is an aggregated model.

    Of several clusters: the mean accuracy, and the indicators of the model that is nearest to a collapse.
    """
    every = context.config.evaluation.knn_every
    if not served or not every or number % every:
        return {"knn": None, "collapse": None}
    knn = [found for model in served if (found := knn_monitor(context, model)) is not None]
    signs = min((collapse_monitor(context, model) for model in served), key=lambda found: found.effective_rank)
    return {"knn": sum(knn) / len(knn) if knn else None, "collapse": signs.to_json()}


def _validated(
    context: Context, replies: Replies, sent: Mapping[str, bytes]
) -> tuple[Replies, dict[str, str], dict[str, str], dict[str, tuple[bytes, State]]]:
    """Uploads that the server may use, and why the others were rejected: not valid, or valid but not plausible.

    The last are the uploads with their states, if the server will need them.
    """
    valid, rejected, implausible = {}, {}, {}
    read: dict[str, tuple[bytes, State]] = {}
    known: dict[tuple[int, bytes], State] = {}  # clients of the same bits usually received the same bytes
    for name, reply in replies.items():
        try:
            context.algorithm.check(reply[0], context.bits[name], context.task)
        except ContainerError as error:
            rejected[name] = str(error)
            continue
        try:
            key = context.bits[name], sent[name]
            if key not in known:
                known[key] = read_payload(sent[name], context.bits[name], context.task)
            model = _plausible(context, name, reply, known[key])
            valid[name] = reply
            if model is not None and context.algorithm.reads_uploads:
                read[name] = reply[0], model
        except ContainerError as error:
            implausible[name] = str(error)
    return valid, rejected, implausible, read


def _plausible(context: Context, name: str, reply: tuple[bytes, ClientMetrics], received: State) -> State | None:
    """The model in an upload, if the algorithm says how to read it; ContainerError for what no training can have given."""
    upload, metrics = reply
    model = context.algorithm.model_in(upload, received, context.bits[name], context.task)
    if model is not None:
        check_values(received, model)
    if any(abs(loss) > LARGEST for loss in metrics.losses if math.isfinite(loss)):
        raise ContainerError(f"its losses are not plausible: one is beyond {LARGEST:g}")
    return model


def _arrived(context: Context, names: list[str], valid: Replies, sent: Mapping[str, bytes]) -> Arrived:
    config = context.config
    return Arrived(
        payloads={n: payload for n, (payload, _) in valid.items()},
        samples={n: metrics.samples for n, (_, metrics) in valid.items()},
        clients=tuple(names),
        bits=context.bits,
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        temperature=config.aggregation.temperature,
        sent=sent,
        max_share=config.aggregation.max_share,
    )


def _line(number: int, lr: float, after: Round, replies: Replies) -> dict[str, Any]:
    """The figures of a round that come from training."""
    last = [m.losses[-1] for _, m in replies.values() if m.losses]
    clusters = after.clusters
    found = {} if clusters is None else {"clusters": dict(clusters.of), "cluster_distances": _lists(clusters.distances)}
    return {
        "round": number,
        "lr": lr,
        "loss": sum(last) / len(last) if last else after.server_loss,
        "client_loss": {n: list(m.losses) for n, (_, m) in replies.items()},
        "skipped_steps": sum(m.skipped_steps for _, m in replies.values()),
        "server_loss": after.server_loss,
        "server_step_size": after.step_size,
        "dequantize_loss": dict(after.losses),
        "weights": dict(after.weights),
        **found,
    }


def _lists(distances: Mapping[str, Mapping[int, float]]) -> dict[str, list[float]]:
    """By client, in the order of the clusters."""
    return {n: [of[c] for c in sorted(of)] for n, of in distances.items()}


__all__ = ["first_checkpoint", "learning_rate", "play_round", "sampled", "server_learning_rate"]
