"""One round of Algorithm 1, from a checkpoint to the next: clients, then server; and its line in ``metrics.jsonl``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.aggregate import NothingToAggregateError
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.server.plausible import check_values
from fedqssl.federated.server.usable import check_usable
from fedqssl.federated.server_state import ServerState
from fedqssl.federated.state import State, read_payload, read_state, write_state
from fedqssl.lowbit import ContainerError, to_bytes
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


def sampled(context: Context, round_number: int) -> list[str]:
    """Names of the clients that take part in a round: a fraction of all, at least ``min_clients``.

    They are drawn anew in every round; or, if the algorithm's clients take turns, from a random order of all, which is used up
    before the next one is drawn. Its last round may repeat clients, so that every round has as many.
    """
    names = sorted(context.bits)
    wanted = context.config.participants(len(names))
    drawn, first = round_number, 0
    if context.algorithm.takes_turns:
        drawn, turn = divmod(round_number, -(-len(names) // wanted))
        first = min(turn * wanted, len(names) - wanted)
    order = torch.randperm(len(names), generator=generator(context.config.seed, "sampling", drawn))
    return sorted(names[i] for i in order[first : first + wanted].tolist())


def first_checkpoint(context: Context) -> Checkpoint:
    """One float initialisation, quantized to each bitwidth."""
    made = {b: to_bytes(context.task.converted(b)) for b in sorted(set(context.bits.values()))}
    payloads = {name: made[b] for name, b in context.bits.items()}
    full = context.task.converted(32)
    return Checkpoint(0, payloads, to_bytes(full), RunTotals(), context.algorithm.init(read_state(full)))


def play_round(
    context: Context, engine: Engine, pool: Pool[Any], before: Checkpoint, round_number: int
) -> tuple[Checkpoint, dict[str, Any]]:
    """One round; the checkpoint after it and its line of metrics."""
    config, algorithm = context.config, context.algorithm
    names, lr = sampled(context, round_number), learning_rate(config, round_number)
    sent = {n: before.payloads[n] for n in names} if algorithm.has_clients else {}
    began = time.monotonic()
    replies, failed = engine.train_clients(sent, context.job(round_number, lr))
    server_began = time.monotonic()
    valid, rejected, implausible = _validated(context, replies, sent)
    rejected |= failed
    _enough(context, round_number, len(valid) + len(implausible), rejected)
    operators = ServerOperators(
        context, pool, round_number, lr, server_learning_rate(config, round_number), before.aggregated
    )
    rejected |= implausible
    after = _after(operators, before, _arrived(context, names, valid, sent))
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
    """The outcome of a round: the server's state, the next models to send, and the model to evaluate.

    ``kept`` says why the round keeps the model before it, if it does.
    """

    round: Round
    state: ServerState
    payloads: Mapping[str, bytes]
    aggregated: bytes | None
    served: fx.GraphModule | None
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

    after, culprits, why = without_culprits(play, arrived, lambda name: _change(context, name, arrived), least)
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
    model = None
    if before.aggregated is not None:
        model = full_precision(context, read_payload(before.aggregated, 32, context.task))
    return _After(Round(None, rejected=rejected or {}), before.server_state, {}, before.aggregated, model, why)


def _server_round(operators: ServerOperators, state: ServerState, arrived: Arrived) -> _After:
    """The server's part: aggregate, then hand out; after the last round, the served model replaces the aggregate."""
    context, round_number = operators.context, operators.round_number
    assert isinstance(context, Context)
    server = configured_server(context.algorithm, context.config)
    state, found = server(state, arrived, operators)
    if found.aggregate is None:
        return _After(found, state, found.payloads, None, None)
    check_usable(found.aggregate, operators.before(), context.buffer(), context.task)
    last = round_number + 1 == context.config.rounds
    served = found.aggregate if found.served is None else found.served
    w = served if last else found.aggregate
    assert found.hand_out is not None, "an algorithm that returns an aggregate must also return hand_out"
    payloads = found.hand_out(w)
    model = full_precision(context, served)
    aggregated = to_bytes(model if w is served else full_precision(context, w))
    return _After(found, state, payloads, aggregated, model)


def full_precision(context: Context, state: State) -> fx.GraphModule:
    """The run's model without rounding, with this state."""
    model = context.task.converted(32)
    write_state(model, state)
    return model


def _enough(context: Context, round_number: int, valid: int, rejected: Mapping[str, str]) -> None:
    """Raise an error for a round with fewer valid updates than ``min_clients``."""
    least = context.config.min_clients
    if context.algorithm.has_clients and valid < least:
        reasons = "; ".join(f"{n}: {why}" for n, why in sorted(rejected.items()))
        raise RunError(
            f"round {round_number + 1} got {counted(valid, 'valid update')}, fewer than min_clients = {least} ({reasons})"
        )


def _monitors(context: Context, served: fx.GraphModule | None, number: int) -> dict[str, Any]:
    """KNN accuracy and label-free indicators, in the rounds configured for them, if there is an aggregated model."""
    every = context.config.evaluation.knn_every
    if served is None or not every or number % every:
        return {"knn": None, "collapse": None}
    return {"knn": knn_monitor(context, served), "collapse": collapse_monitor(context, served).to_json()}


def _validated(
    context: Context, replies: Replies, sent: Mapping[str, bytes]
) -> tuple[Replies, dict[str, str], dict[str, str]]:
    """Uploads that the server may use, and why the others were rejected: not valid, or valid but not plausible."""
    valid, rejected, implausible = {}, {}, {}
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
            _check_plausible(context, name, reply, known[key])
            valid[name] = reply
        except ContainerError as error:
            implausible[name] = str(error)
    return valid, rejected, implausible


def _check_plausible(context: Context, name: str, reply: tuple[bytes, ClientMetrics], received: State) -> None:
    """Raise ContainerError for values or losses that no training can have given."""
    upload, metrics = reply
    model = context.algorithm.model_in(upload, received, context.bits[name], context.task)
    if model is not None:
        check_values(received, model)
    if any(abs(loss) > LARGEST for loss in metrics.losses if math.isfinite(loss)):
        raise ContainerError(f"its losses are not plausible: one is beyond {LARGEST:g}")


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
    }


__all__ = ["first_checkpoint", "full_precision", "learning_rate", "play_round", "sampled", "server_learning_rate"]
