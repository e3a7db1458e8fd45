"""A client's own side of a fleet: its labels, as the fleet numbers its classes."""

import pytest
import torch

from fedqssl.accelerators import DeviceError
from fedqssl.config import load_config
from fedqssl.data.images import DataError, ImageSet, resized
from fedqssl.deploy import client_role
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.events import Events
from fedqssl.deploy.store import Store
from fedqssl.engines.flower.wire import Request
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.context import make_task
from fedqssl.federated.job import Job
from fedqssl.lowbit import to_bytes
from fedqssl.quant import kernels
from pretend_gpu import pretend_gpu

IMAGES, LABELS = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, 0])


def test_labels_follow_the_names_of_the_classes():
    """What is class 0 at a client may be class 2 of the fleet."""
    part = ImageSet(IMAGES, LABELS, ("cat", "dog"))
    assert FleetClient._labels(part, ("bird", "dog", "cat")).tolist() == [2, 1, 1, 2]
    assert FleetClient._labels(part, None).tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match="the fleet has no class 'cat'; its classes: bird, dog"):
        FleetClient._labels(part, ("bird", "dog"))
    with pytest.raises(DataError, match="these images have none"):
        FleetClient._labels(ImageSet(IMAGES), None)


def test_images_are_read_again_in_the_size_of_the_run(tmp_path):
    """The split is the same in every size: held-out images stay held out."""
    fine = torch.randint(0, 256, (12, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sizes = []

    def read(size):
        sizes.append(size)
        both = resized(ImageSet(fine, torch.arange(12)), size)
        return both.subset(range(8)), both.subset(range(8, 12))

    store = Store(tmp_path / "state")
    store.split(*reversed(read(32)))  # earlier, the first eight were held out
    client = FleetClient("car-1", 4, *read(32), store, Events(tmp_path / "log"), reload=read)
    assert client.tested.labels.tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7] and not len(client.held)
    store = Store(tmp_path / "other")
    client = FleetClient("car-1", 4, *read(32), store, Events(tmp_path / "log"), reload=read)
    config = load_config("smoke", {"model": "small_cnn", "width": 4, "image_size": 64})
    task = make_task(config, 3, 0)
    job = Job(0, 0.1, "fed_simclr", task, 1)
    sizes.clear()
    for _ in range(2):
        client.train(Request("run", "nonce", job.to_json()), to_bytes(task.converted(4)))
    assert torch.equal(client.held.images, fine[:8]) and client.held.labels.tolist() == list(range(8)) and sizes == [64]
    client.reload = lambda size: (ImageSet(fine[:5]), ImageSet(fine[5:8]))
    with pytest.raises(DataError, match="the images of car-1 have changed since it was started"):
        client.evaluate(
            Request("run", "nonce", {**job.to_json(), "task": {**job.to_json()["task"], "image_size": 32}}), b""
        )


def test_a_client_trains_where_it_says(tmp_path, monkeypatch):
    """Its device is its own choice: on a GPU that is not there, with the bytes of the CPU."""
    pixels = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = ImageSet(pixels[:8]), ImageSet(pixels[8:])
    task = make_task(load_config("smoke", {"model": "small_cnn", "width": 4, "image_size": 8, "batch_size": 4}), 3, 0)
    request = Request("run", "nonce", Job(0, 0.1, "fed_simclr", task, 1).to_json())

    def sent(device: str) -> bytes:
        home = tmp_path / device
        client = FleetClient("car-1", 2, *parts, Store(home / "state"), Events(home / "log"), device=device)
        return client.train(request, to_bytes(task.converted(2)))[0]

    with pytest.raises(DeviceError, match="device=cuda, but"):
        sent("cuda")
    with kernels.use("torch"):
        want = sent("cpu")
        with pretend_gpu(monkeypatch) as crossed:
            assert sent("cuda") == want and crossed["up", "deploy.client_role.train"] == 1


def test_a_client_trains_on_what_it_holds_and_is_judged_on_what_it_held_out(tmp_path, monkeypatch):
    """Neither its training nor its classifier sees a held-out image."""
    pixels = torch.randint(0, 256, (12, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    held, tested = (
        ImageSet(pixels[part], torch.arange(12)[part] % 2, ("cat", "dog")) for part in (slice(8), slice(8, 12))
    )
    client = FleetClient("car-1", 4, held, tested, Store(tmp_path / "state"), Events(tmp_path / "log"))
    seen = {}

    def performed(job, payload, data):
        seen["trained on"] = data.images
        return payload, ClientMetrics(len(data.images), (0.0,), 0, 0.0)

    def made(task, name, bits, payload, train, test, names):
        seen["fitted to"], seen["judged on"] = train, test
        return b"file", 0.5

    monkeypatch.setattr(client_role, "perform", performed)
    monkeypatch.setattr(client_role, "device_file", made)
    task = make_task(load_config("smoke", {"model": "small_cnn", "width": 4}), 3, 0)
    request = Request("run", "nonce", Job(0, 0.1, "fed_simclr", task, 1).to_json())
    client.train(request, b"payload")
    assert client.evaluate(request, b"payload") == 0.5
    assert torch.equal(seen["trained on"], held.images)
    for name, part in (("fitted to", held), ("judged on", tested)):
        assert torch.equal(seen[name][0], part.images) and torch.equal(seen[name][1], part.labels), name
