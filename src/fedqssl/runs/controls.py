"""What a run has to beat: controls on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedqssl.engines.pool import Pool
from fedqssl.evaluation.controls import measure_controls
from fedqssl.federated.context import Context, Simulation
from fedqssl.federated.finish import full_precision
from fedqssl.federated.server import settle
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.state import State, read_state
from fedqssl.lowbit import to_bytes
from fedqssl.runs.evaluate import Which, client_accuracy, global_accuracy, held_out, knn_monitor, some, unmeasured

CONTROL_IMAGES = 4000
"""Training images that the global controls are fitted on at most, so that they take seconds."""
SETTLE_BATCHES = 10
"""Batches of the buffer for the batch-norm statistics of the untrained network."""
Accuracies = Mapping[str, float]


def run_controls(context: Context, pool: Pool[Any]) -> tuple[Accuracies | None, dict[str, Accuracies]]:
    """Controls of the global accuracy and, in a simulation, of each client's; only where that accuracy is measured."""
    if not _wanted(context):
        return None, {}
    names = held_out(context)
    models: dict[str, bytes | None] = dict.fromkeys(["", *names])
    if not context.task.supervised:  # whose untrained classifier would be a guess
        state = _untrained(context)
        models[""] = to_bytes(full_precision(context.task, state))
        if names:
            models |= ServerOperators(context, pool, 0, 0.0, 0.0, None).round_to_bits(state)
    jobs: dict[tuple[Which, str], tuple[Which, str, bytes | None]] = {}
    if len(context.test):
        jobs["global", ""] = "global", "", models[""]
    jobs |= {("local", name): ("local", name, models[name]) for name in names}
    found = pool.run("controls", _controls, jobs)
    return found.get(("global", "")), {name: found["local", name] for name in sorted(names)}


def _wanted(context: Context) -> bool:
    return not unmeasured(context) and context.config.evaluation.controls == "all"


def _controls(context: Context, which: Which, name: str, model: bytes | None) -> Accuracies:
    """A job of the pool: the controls of one accuracy; ``model`` is the untrained network in the client's bits."""
    train, test, classes = context.train, context.test, context.task.classes
    assert train.labels is not None and test.labels is not None
    if which == "local":
        assert isinstance(context, Simulation)
        split = context.partition.clients[name]
        own = [(train.images[part], train.labels[part]) for part in (split.train, split.test)]
        found = measure_controls(*own[0], *own[1], classes).to_json()
        return found if model is None else found | {"untrained": client_accuracy(context, name, model)}
    known = some(len(train.images), CONTROL_IMAGES)
    found = measure_controls(train.images[known], train.labels[known], test.images, test.labels, classes).to_json()
    return found if model is None else found | {"untrained": global_accuracy(context, 32, model)}


def _untrained(context: Context) -> State:
    """The network as it was before the first round, with batch-norm statistics of the buffer."""
    return settle(read_state(context.task.converted(32)), context.buffer(), context.task, SETTLE_BATCHES)


def untrained_knn(context: Context) -> float | None:
    """The monitor's kNN accuracy of the untrained network; None where nothing is monitored, compared or pre-trained."""
    wanted = _wanted(context) and context.config.evaluation.knn_every and context.algorithm.federates
    if not wanted or context.task.supervised or not steps_taken(context):
        return None
    return knn_monitor(context, full_precision(context.task, _untrained(context)))


def steps_taken(context: Context, rounds: int | None = None) -> int:
    """Training steps, one after the other, that the final model is made of: an average client's, and the server's.

    ``rounds`` were played, by default all.
    """
    config, task, clients = context.config, context.task, context.sizes.values()
    work = context.algorithm.work(config, config.participants(len(clients)))
    server = work.server_steps(task, len(context.buffer()), sum(clients))
    client = (config.local_epochs or 0) * fmean(map(task.steps, clients)) + (config.local_steps or 0)
    in_a_round = (server.dequantize or 0) + server.buffer + server.union + (client if work.clients_train else 0)
    return round((config.rounds if rounds is None else rounds) * in_a_round)


__all__ = ["run_controls", "steps_taken", "untrained_knn"]
