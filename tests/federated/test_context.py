"""Who holds which images in a simulation: a client its training images, the server its buffer, and nobody what is tested on."""

import json

import pytest
import torch

from fedqssl.federated.context import FleetContext
from fedqssl.federated.job import Job
from tiny_run import tiny_context


def pixels(images) -> set[bytes]:
    return {image.contiguous().numpy().tobytes() for image in images}


def test_clients_and_server_hold_their_own_images_and_no_others():
    context = tiny_context()
    train, labels, split = context.train.images, context.train.labels, context.partition
    held_out = pixels(context.test.images)
    for name, own in split.clients.items():
        data = context.client(name)
        assert torch.equal(data.images, train[own.train]) and torch.equal(data.labels, labels[own.train])
        assert (data.name, data.bits) == (name, context.bits[name]) and context.sizes[name] == len(own.train)
        held_out |= pixels(train[own.test])
    assert torch.equal(context.buffer(), train[split.buffer])
    clients = [pixels(context.client(name).images) for name in split.clients]
    assert pixels(context.everyone()) == set().union(*clients)
    parts = [*clients, pixels(context.buffer()), held_out]
    assert sum(map(len, parts)) == len(set().union(*parts)) > 100  # no image is in two of them


def test_a_job_has_the_settings_of_the_run():
    context = tiny_context(
        algorithm="fed_prox",
        local_epochs=3,
        **{"fedprox.mu": 0.5, "lowbit.rule": "latent", "lowbit.scale": "max", "lowbit.rounding": "nearest"},
    )
    job = context.job(4, 0.2, return_model=True)
    assert (job.round_number, job.lr, job.algorithm, job.epochs, job.task) == (4, 0.2, "fed_prox", 3, context.task)
    assert (job.rule, job.scale, job.rounding, job.proximal, job.return_model) == (
        "latent",
        "max",
        "nearest",
        0.5,
        True,
    )
    assert not context.job(0, 0.1).return_model


@pytest.mark.parametrize("centres", ["quantile", "mean"])
def test_gradients_are_quantized_as_the_run_says(centres):
    context = tiny_context(**{"lowbit.gradient_centres": centres})
    assert context.task.options.gradient_centres == centres
    sent = Job.from_json(json.loads(json.dumps(context.job(0, 0.1).to_json())))
    assert sent.task.options.gradient_centres == centres


def test_a_fleet_knows_how_many_images_its_clients_have():
    near = tiny_context()
    public, samples = near.buffer(), {"client-00": (30, 5), "client-01": (20, 0)}
    fleet = FleetContext(
        near.config, near.task, {"client-00": 4, "client-01": 8}, near.train, near.test, public, samples
    )
    assert fleet.sizes == {"client-00": 30, "client-01": 20} and fleet.buffer() is public
    assert fleet.partition_json()["clients"] == {
        "client-00": {"train": 30, "test": 5},
        "client-01": {"train": 20, "test": 0},
    }
