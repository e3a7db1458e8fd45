"""A job from another machine: what it may ask to be imported, and which algorithms are known."""

import dataclasses

import pytest

from fedqssl.federated.job import Job, JobError
from fedqssl.federated.perform import read_job
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions

TASK = Task("small_cnn", 4, 3, "simclr", 0.5, 8, seed=0, options=LowBitOptions())
JOB = Job(0, 0.1, "fed_qssl", TASK, 1)


def test_nothing_is_imported_without_trust():
    assert read_job(JOB.to_json()) == JOB
    own_model = dataclasses.replace(JOB, task=dataclasses.replace(TASK, model="package.module:Class"))
    with pytest.raises(JobError, match=r"asks for the model 'package.module:Class' to be imported.*--trust"):
        read_job(own_model.to_json())
    assert read_job(own_model.to_json(), trust=True) == own_model
    with pytest.raises(JobError, match=r"asks for the algorithm 'package.module:NAME' to be imported.*--trust"):
        read_job(dataclasses.replace(JOB, algorithm="package.module:NAME").to_json())


def test_an_unknown_algorithm_may_be_a_newer_servers():
    with pytest.raises(JobError, match="this fedqssl is as new as the server's"):
        read_job(dataclasses.replace(JOB, algorithm="fed_magic").to_json())
