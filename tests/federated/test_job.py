"""A job as it travels: its words on the wire are those that older clients know."""

import dataclasses

import pytest

from fedqssl.federated.job import Job, JobError
from fedqssl.federated.task import Task
from fedqssl.lowbit import LowBitOptions

TASK = Task("small_cnn", 4, 3, "simclr", 0.5, 8, seed=0, options=LowBitOptions())
JOB = Job(3, 0.1, "fed_prox", TASK, 2, "latent", "max", "nearest", proximal=0.25, return_model=True)


def test_the_words_on_the_wire():
    sent = JOB.to_json()
    assert sent["mu"] == 0.25 and sent["plainly"] is True
    assert set(sent) == {
        *("round_number", "lr", "algorithm", "task", "epochs", "rule", "scale", "rounding", "mu", "plainly"),
        "steps",
    }
    assert Job.from_json(sent) == JOB


@pytest.mark.parametrize(
    "change",
    [{"round_number": -1}, {"epochs": 0}, {"rule": "magic"}, {"lr": "fast"}, {"task": {}}, {"mu": None}],
    ids=lambda change: next(iter(change)),
)
def test_what_is_not_a_job_is_refused_in_one_line(change):
    with pytest.raises(JobError) as error:
        Job.from_json({**JOB.to_json(), **change})
    assert "\n" not in str(error.value)


def test_a_job_of_steps():
    job = dataclasses.replace(JOB, epochs=None, steps=7)
    assert Job.from_json(job.to_json()) == job and job.to_json()["epochs"] is None  # which older clients refuse
    assert (job.steps_of(5), job.steps_of(800)) == (7, 7)
    assert (JOB.steps_of(5), JOB.steps_of(8), JOB.steps_of(31)) == (2, 2, 6)  # two epochs of full batches of 8
    for epochs, steps in ((2, 7), (None, None)):
        with pytest.raises(JobError, match="epochs or of steps, and not both"):
            Job.from_json({**JOB.to_json(), "epochs": epochs, "steps": steps})
    with pytest.raises(JobError, match="out of range"):
        Job.from_json({**job.to_json(), "steps": 0})


def test_a_job_from_an_older_server_is_of_epochs():
    sent = JOB.to_json()
    del sent["steps"]
    assert Job.from_json(sent) == JOB


def test_batches_of_one_image_are_refused():
    small = dataclasses.replace(JOB, task=dataclasses.replace(TASK, batch_size=1))
    with pytest.raises(JobError, match="out of range"):
        Job.from_json(small.to_json())
    with pytest.raises(JobError):
        Job.from_json([])
