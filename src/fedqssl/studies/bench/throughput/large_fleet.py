"""A fleet of so many clients: ``DATA CLIENTS ROUNDS WORKERS WHAT OUT``, where WHAT is ``fixed`` or ``training``.

With ``fixed`` clients load, copy and pack models, but take no steps, so that what is left is what a round costs beside training.
The last line of the output is JSON: CPU seconds of this process until the first round, and of each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedqssl.config import load_config
from fedqssl.federated.algorithms.base import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.job import ClientData, Job
from fedqssl.lowbit import LowBitSGD, load_bytes, to_bytes
from fedqssl.runs import start
from fedqssl.runs.progress import Progress

COHORT, BITS, EVALUATED = 50, (4, 6, 8, 12), 20


def no_steps(payload: bytes, job: Job, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """All that a client does but its training."""
    model = job.task.converted(data.bits)
    load_bytes(model, payload)
    LowBitSGD(model, job.lr)
    return to_bytes(model), ClientMetrics(len(data.images), (0.0,), 0, 0.0)


NO_STEPS = Algorithm(
    *("no_steps", "No steps", "what a round costs beside training", plain_average),
    client=no_steps,
    objective="simclr",
    needs_sums_only=True,
)


class Watch(Progress):
    """Notes CPU time when the first round begins, and when a round and its checkpoint are done."""

    def __init__(self) -> None:
        super().__init__(lambda line: None)
        self.began: float | None = None
        self.ends: list[float] = []

    def round(self, number: int, rounds: int) -> None:
        """The first beginning counts."""
        self.began = time.process_time() if self.began is None else self.began

    def go_on(self, line: Mapping[str, Any]) -> bool:
        """A round has ended."""
        self.ends.append(time.process_time())
        return True


def main() -> None:
    """Run the fleet."""
    data, clients, rounds, workers, what, out = sys.argv[1:]
    each = int(clients) // len(BITS)
    values = {
        **{"data": f"arrays:{data}", "buffer": f"arrays:{data}/buffer", "image_size": 8, "images": None},
        **{"bits": ",".join(f"{b}x{each}" for b in BITS), "partition": "iid", "fraction": COHORT / int(clients)},
        **{"model": "small_cnn", "width": 8, "rounds": int(rounds), "batch_size": 10, "workers": int(workers)},
        **{"algorithm": "fed_simclr" if what == "training" else f"{__spec__.name}:NO_STEPS", "buffer_ratio": None},
        **{"evaluation.clients": EVALUATED, "evaluation.knn_every": 0, "evaluation.controls": "none"},
    }
    watch = Watch()
    start(load_config("smoke", values), Path(out), progress=watch)
    marks = [watch.began or 0.0, *watch.ends]
    print(json.dumps({"start": marks[0], "rounds": [b - a for a, b in pairwise(marks)]}))


if __name__ == "__main__":
    main()
