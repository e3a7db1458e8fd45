"""``buffer=DATA``: the server's buffer from data of its own, in every place that has to do with the buffer."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fedqssl.cli.plan_tables import notes
from fedqssl.config import ConfigError, load_config, load_run_config
from fedqssl.cost import client_sizes, ledger
from fedqssl.data.images import DataError
from fedqssl.data.registry import load_dataset
from fedqssl.federated.context import build_simulation
from fedqssl.federated.protocol import protocol
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.reporting import write_report
from fedqssl.runs import RunError, resume, start
from tiny_run import known_run, model_bytes, silent, stopped_after, tiny


def public(folder, count=40, mode="L", seed=0):
    draws = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        pixels = Image.fromarray(draws.integers(0, 256, (20, 30, 3), dtype=np.uint8))
        pixels.convert(mode).save(folder / f"{i:02d}.png")
    return f"folder:{folder}"


def test_all_training_images_go_to_the_clients(tmp_path):
    data = public(tmp_path / "public")
    context = build_simulation(tiny(buffer=data, buffer_images=30, image_size=16))
    own = load_dataset(data, "train", size=16, images=30, holdout=0.0).images
    assert torch.equal(context.buffer(), own) and context.buffer().shape == (30, 3, 16, 16)
    held = [t for c in context.partition.clients.values() for t in (c.train, c.test)]
    assert torch.cat(held).sort().values.tolist() == list(range(160)) and not len(context.partition.buffer)
    assert context.partition_json()["buffer"] == 30
    assert len(build_simulation(tiny(buffer=data, image_size=16)).buffer()) == 40  # all, where there are fewer than 500


def test_channels_are_adapted(tmp_path):
    colours = public(tmp_path / "public", mode="RGB")
    grey = build_simulation(tiny(data="digits", buffer=colours, buffer_images=8))
    assert grey.buffer().shape == (8, 1, 32, 32) and grey.train.images.shape[1] == 1
    assert build_simulation(tiny(buffer="digits", buffer_images=8)).buffer().shape == (8, 3, 32, 32)


def test_what_cannot_be_a_buffer(tmp_path):
    with pytest.raises(DataError, match="buffer=scenes is the clients' own data; use buffer_ratio"):
        build_simulation(tiny(buffer="scenes"))
    one = public(tmp_path / "one", 1)
    with pytest.raises(DataError, match="has 1 image; at least 2 are needed"):
        build_simulation(tiny(buffer=one))
    with pytest.raises(DataError, match="unknown dataset"):
        build_simulation(tiny(buffer="digit"))


def test_later_settings_replace_earlier_ones(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('buffer = "digits"\nbuffer_images = 7\n')
    assert load_config(path).buffer_ratio is None and load_config(path, ["buffer_ratio=0.2"]).buffer is None
    assert load_config("cifar10-small", ["buffer=digits"]).buffer_ratio is None
    moved = load_config(path, ["buffer=scenes", "data=digits"])
    assert (moved.buffer, moved.buffer_images) == ("scenes", 500)
    assert load_config(path, ["buffer_images=9"]).buffer_images == 9
    path.write_text('buffer = "digits"\nbuffer_ratio = 0.1\n')
    with pytest.raises(ConfigError, match="buffer and buffer_ratio exclude each other"):
        load_config(path)


def test_comparisons_do_not_mix_buffers():
    found = [protocol(tiny(**c)) for c in ({}, {"buffer": "digits"}, {"buffer": "digits", "buffer_images": 9})]
    assert len(set(found)) == 3 and protocol(tiny(buffer_draw="last")) != found[0]
    assert protocol(tiny(buffer="digits", buffer_draw="last")) == found[1]


def test_a_run_resumes_with_the_same_images_only(tmp_path):
    data = public(tmp_path / "public")
    config = tiny(buffer=data, buffer_images=20)
    with stopped_after(1):
        start(config, tmp_path / "a", say=silent)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    result, whole = resume(tmp_path / "a", say=silent), start(config, tmp_path / "b", say=silent)
    assert model_bytes(tmp_path / "a") == model_bytes(tmp_path / "b") and result.protocol == whole.protocol
    assert (
        load_run_config(tmp_path / "a").buffer == data
        and "buffer_ratio" not in (tmp_path / "a/config.toml").read_text()
    )
    assert json.loads((tmp_path / "a/partition.json").read_text())["buffer"] == 20
    assert f"buffer 20 images of {data}" in " ".join(write_report(tmp_path / "a").read_text().split())
    assert FinishedRun.open(tmp_path / "a").context.buffer().shape[0] == 20
    other = known_run()
    assert model_bytes(other.folder) != model_bytes(tmp_path / "a") and other.protocol != result.protocol
    shutil.rmtree(tmp_path / "public")
    public(tmp_path / "public", seed=1)
    with pytest.raises(RunError, match=r"the data behind .* have changed"):
        resume(tmp_path / "c", say=silent)


def test_the_plan_counts_it(tmp_path, monkeypatch):
    data = public(tmp_path / "public")
    found = ledger(tiny(buffer=data, buffer_images=30))
    assert found.sizes.buffer == 30 and f"the server's buffer is 30 images of {data}" in notes(found, None)
    assert sum(found.sizes.clients.values()) > sum(client_sizes(tiny()).clients.values())
    from fedqssl.cost import sizes

    monkeypatch.setattr(sizes, "cache_folder", lambda: tmp_path)
    assert client_sizes(tiny(buffer="cifar100", buffer_images=30)).buffer == 30  # nothing is downloaded
    assumed = client_sizes(load_config("cifar10-small", {"buffer": "cifar100"}))
    assert assumed.buffer == 500 and sum(assumed.clients.values()) == 8000


def test_clients_drawn_first_are_the_same_for_every_buffer():
    def clients(ratio, draw):
        words = {"partition": "dirichlet", "beta": 0.5, "images": 600, "buffer_ratio": ratio, "buffer_draw": draw}
        partition = build_simulation(tiny(**words)).partition
        held = {name: {*c.train.tolist(), *c.test.tolist()} for name, c in partition.clients.items()}
        return held, set(partition.buffer.tolist())

    (few, small), (some, large) = clients(0.02, "last"), clients(0.2, "last")
    assert small < large and not any(held & large for held in some.values())
    assert all(few[name] - large == some[name] for name in few)
    first = [clients(ratio, "first")[0] for ratio in (0.02, 0.2)]
    assert any(first[0][name] - large != first[1][name] for name in few)  # as it was: other clients
