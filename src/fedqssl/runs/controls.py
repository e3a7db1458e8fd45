"""What a run has to beat: controls on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedqssl.engines.pool import Pool
from fedqssl.evaluation.controls import measure_controls
from fedqssl.federated.context import Context, Simulation
from fedqssl.federated.server import settle
from fedqssl.federated.state import read_state, write_state
from fedqssl.lowbit import to_bytes
from fedqssl.runs.evaluate import Which, global_accuracy, held_out, some, unmeasured

CONTROL_IMAGES = 4000
"""Training images that the global controls are fitted on at most, so that they take seconds."""
Accuracies = Mapping[str, float]


def run_controls(context: Context, pool: Pool[Any]) -> tuple[Accuracies | None, dict[str, Accuracies]]:
    """Controls of the global accuracy and, in a simulation, of each client's; only where that accuracy is measured."""
    if unmeasured(context) or context.config.evaluation.controls == "none":
        return None, {}
    names = held_out(context)
    jobs: dict[tuple[Which, str], tuple[Which, str]] = {("global", ""): ("global", "")} if len(context.test) else {}
    jobs |= {("local", name): ("local", name) for name in names}
    found = pool.run("controls", _controls, jobs)
    return found.get(("global", "")), {name: found["local", name] for name in sorted(names)}


def _controls(context: Context, which: Which, name: str) -> Accuracies:
    """A job of the pool: the controls of one accuracy."""
    train, test, classes = context.train, context.test, context.task.classes
    assert train.labels is not None and test.labels is not None
    if which == "local":
        assert isinstance(context, Simulation)
        split = context.partition.clients[name]
        own = [(train.images[part], train.labels[part]) for part in (split.train, split.test)]
        return measure_controls(*own[0], *own[1], classes).to_json()
    known = some(len(train.images), CONTROL_IMAGES)
    found = measure_controls(train.images[known], train.labels[known], test.images, test.labels, classes).to_json()
    return found if context.task.supervised else found | {"untrained": _untrained(context)}


def _untrained(context: Context) -> float:
    """The network as it was before the first round, with batch-norm statistics of the buffer, judged as the run is."""
    model = context.task.converted(32)
    write_state(model, settle(read_state(model), context.buffer(), context.task))
    return global_accuracy(context, 32, to_bytes(model))


__all__ = ["run_controls"]
