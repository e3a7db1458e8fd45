"""A bare training loop: load the model, train a user, add up; two processes are two halves of the cohort."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch

from fedqssl.studies.bench.throughput.workload import COHORT, Asked, asked, cohort, iterate, simple_cnn, train

Arrays = dict[str, np.ndarray]
_HERE: list[Asked] = []


def _sum(weights: Mapping[str, np.ndarray], users: Sequence[int], iteration: int) -> Arrays:
    """The sum of the models of some users."""
    start, model = {name: torch.from_numpy(x) for name, x in weights.items()}, simple_cnn()
    total = {name: torch.zeros_like(x) for name, x in start.items()}
    for user in users:
        model.load_state_dict(start)
        train(model, _HERE[0].users[user], iteration * COHORT + user)
        for name, x in model.state_dict().items():
            total[name] += x
    return {name: x.numpy() for name, x in total.items()}


def main() -> None:
    """Run the workload."""
    job = asked()
    _HERE.append(job)
    torch.manual_seed(0)
    weights = {name: x.numpy() for name, x in simple_cnn().state_dict().items()}
    with ExitStack() as stack:
        pool = None
        if job.processes > 1:
            pool = stack.enter_context(ProcessPoolExecutor(job.processes, multiprocessing.get_context("fork")))

        def one(iteration: int) -> None:
            users = cohort(len(job.users), iteration)
            if pool is None:
                sums = [_sum(weights, users, iteration)]
            else:
                parts = [users[k :: job.processes] for k in range(job.processes)]
                sums = list(pool.map(_sum, [weights] * len(parts), parts, [iteration] * len(parts)))
            for name in weights:
                weights[name] = sum(found[name] for found in sums) / np.float32(job.cohort)

        iterate(job.iterations, one)


if __name__ == "__main__":
    main()
