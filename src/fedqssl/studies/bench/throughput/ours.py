"""This package: whole rounds of a run, with validation of uploads, checkpoints and lines of metrics."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from fedqssl.config.schema import FULL, make_config
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms.base import Algorithm
from fedqssl.federated.algorithms.fed_avg import plain_average
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.context import build_simulation
from fedqssl.federated.job import ClientData, Job
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.task import SUPERVISED, batches
from fedqssl.lowbit import LowBitSGD, load_bytes, to_bytes
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.round import first_checkpoint, play_round
from fedqssl.studies.bench.throughput.workload import BATCH, RATE, asked, iterate

_PATH = "fedqssl.studies.bench.throughput"


def one_view(payload: bytes, job: Job, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """An epoch of supervised training on the images as they are: the workload has no views. Batches are laid out as views are."""
    began, task = time.process_time(), job.task
    model = task.converted(data.bits)
    load_bytes(model, payload)
    model.train()
    opt = LowBitSGD(model, job.lr, seed=derived_seed(task.seed, "rounding", data.name, job.round_number))
    draws = generator(task.seed, "local training", data.name, job.round_number)
    assert data.labels is not None
    losses = []
    for index in batches(len(data.images), task.batch_size, draws):
        images = data.images[index].contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(images.float() / 255), data.labels[index])
        torch.autograd.backward(loss)
        opt.step()
        losses.append(float(loss.detach()))
    spent = time.process_time() - began
    return to_bytes(model), ClientMetrics(len(data.images), (sum(losses) / len(losses),), opt.skipped, spent)


ONE_VIEW = Algorithm(
    *("one_view", "FedAvg, one view", "the common workload", plain_average),
    client=one_view,
    objective=SUPERVISED,
    needs_sums_only=True,
)


def main() -> None:
    """Run the workload."""
    job = asked()
    users = len(job.users)
    config = make_config(
        {
            **{"data": f"arrays:{job.data}", "buffer": f"arrays:{job.data}/buffer", "buffer_images": 64},
            **{"clients": users, "bits": job.bits, "partition": "iid", "fraction": job.cohort / users},
            **{"model": f"{_PATH}.workload:Encoder", "algorithm": f"{_PATH}.ours:ONE_VIEW", "workers": job.processes},
            **{"rounds": job.iterations + 1, "batch_size": BATCH, "lr": RATE},
            **({"lowbit.weights": "value"} if job.bits == FULL else {}),  # plain weights, as the peers have
            **{"evaluation.holdout": 0.0, "evaluation.knn_every": 0, "evaluation.controls": "none"},
        }
    )
    context = build_simulation(config)
    with tempfile.TemporaryDirectory() as place, Pool(context, job.processes) as pool:
        engine, folder = InProcess(pool), RunFolder.create(Path(place) / "run", overwrite=False)
        held = [first_checkpoint(context)]

        def one(iteration: int) -> None:
            held[0], line = play_round(context, engine, pool, held[0], iteration)
            folder.append_metrics(line)
            folder.save(held[0])

        iterate(job.iterations, one)


if __name__ == "__main__":
    main()
