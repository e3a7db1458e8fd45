"""Perform a job: look up its algorithm and run the client part."""

from __future__ import annotations

from fedqssl.federated.algorithms import AlgorithmError, get_algorithm
from fedqssl.federated.client import ClientMetrics, local_update
from fedqssl.federated.job import ClientData, Job, JobError


def read_job(values: object, *, trust: bool = False) -> Job:
    """A validated job from another machine.

    Args:
        values: the output of :meth:`Job.to_json`.
        trust: allow a model or an algorithm named by import path, which would be imported here.

    Raises:
        JobError: one line that says what is wrong.
    """
    job = Job.from_json(values)
    for kind, name in (("model", job.task.model), ("algorithm", job.algorithm)):
        if ":" in name and not trust:
            raise JobError(f"the server asks for the {kind} {name!r} to be imported; allow that with --trust")
    try:
        get_algorithm(job.algorithm)
    except AlgorithmError as error:
        raise JobError(f"{error}; check that this fedqssl is as new as the server's") from None
    return job


def perform(job: Job, payload: bytes, data: ClientData) -> tuple[bytes, ClientMetrics]:
    """Run the client's part of the round."""
    algorithm = get_algorithm(job.algorithm)
    returns_model = job.return_model and algorithm.upload is not None
    return (local_update if returns_model else algorithm.client)(payload, job, data)


__all__ = ["perform", "read_job"]
