"""``features`` of a run is part of what every role shares; models that end in a classifier have no use for it."""

import pytest
import torch

from fedqssl.federated.context import make_task
from fedqssl.federated.job import Job, JobError
from fedqssl.models.features import FEATURES, feature_dim
from tiny_run import tiny


@pytest.mark.parametrize("kind", FEATURES)
@pytest.mark.parametrize("bits", [4, 32])
def test_the_task_gives_the_features_that_are_set(kind, bits):
    task = make_task(tiny(features=kind), 1, 10)
    extractor = task.extractor(task.converted(bits), 24)
    assert (
        feature_dim(extractor, 1, 24)
        == {"pooled": 32, "grid2": 4 * 32, "stages": 32 + 16 * 8, "pyramid": 32 + (16 + 64) * 8}[kind]
    )


def test_jobs_carry_it_and_older_ones_are_pooled():
    job = Job(0, 0.1, "fed_qssl", make_task(tiny(features="stages"), 3, 10), 1)
    values = job.to_json()
    assert Job.from_json(values) == job
    task = {name: value for name, value in values["task"].items() if name != "features"}
    assert Job.from_json({**values, "task": task}).task.features == "pooled"
    with pytest.raises(JobError, match="features"):
        Job.from_json({**values, "task": {**task, "features": "grid3"}})


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_prox", "fed_paq"])
def test_supervised_models_ignore_it(algorithm):
    task, plain = (make_task(tiny(algorithm=algorithm, features=kind), 3, 10) for kind in ("stages", "pooled"))
    assert task == plain and task.supervised
    assert task.extractor(task.converted(4), 32)(torch.zeros(1, 3, 32, 32)).shape == (1, 32)
