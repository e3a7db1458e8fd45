"""How many photos train: all of them where nothing is labeled or ``evaluation.holdout`` is 0, and nothing breaks then."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fedqssl
from fedqssl.cli.main import app
from fedqssl.config import load_run_config
from fedqssl.cost import client_sizes
from fedqssl.data.from_config import settled
from fedqssl.federated.context import build_simulation
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes
from fedqssl.reporting import write_report
from fedqssl.runs import resume, start
from fedqssl.runs.cells import Cell, State, state_of
from tiny_run import silent, tiny

PLAIN = {"images": None, "clients": 2, "bits": [4, 8], "rounds": 1}


def photos(folder, *names, count=30, seed=0):
    draws = np.random.default_rng(seed)
    for name in names or (".",):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(draws.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / name / f"{i:02d}.png")
    return f"folder:{folder}"


def said(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def unlabeled(tmp_path_factory):
    """A run of loose photos with a partition that needs labels, and what it said."""
    home, lines = tmp_path_factory.mktemp("unlabeled"), []
    config = tiny(data=photos(home / "photos", count=60), partition="dirichlet", **PLAIN)
    return start(config, home / "run", say=lines.append), lines, config


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """A run of labeled photos, none of which is held out."""
    home, lines = tmp_path_factory.mktemp("labeled"), []
    more = {"evaluation.holdout": 0, "evaluation.controls": "all"}
    config = tiny(data=photos(home / "photos", "cat", "dog"), **PLAIN, **more)
    return start(config, home / "run", say=lines.append), lines


def test_without_labels_every_photo_trains(unlabeled):
    result, lines, config = unlabeled
    summary = (result.folder / "summary.md").read_text()
    assert summary.count("--data folder:LABELED_PHOTOS") == 2  # the commands to try next would fail without
    assert f"{config.data} has no labels, so all of its images are used for training and partition is iid" in lines[0]
    partition = json.loads((result.folder / "partition.json").read_text())
    trained = {i for c in partition["clients"].values() for i in c["train"]}
    assert sorted(trained | set(partition["buffer"])) == list(range(60)) and not any(
        c["test"] for c in partition["clients"].values()
    )
    recorded = load_run_config(result.folder)
    assert (recorded.partition, recorded.evaluation.holdout) == ("iid", 0.0)
    assert client_sizes(config).clients == {name: c.samples for name, c in result.clients.items()}
    assert lines[0] in (result.folder / "log.txt").read_text()


def test_an_older_run_without_labels_keeps_what_it_held_out(unlabeled):
    *_, config = unlabeled
    before = tiny(data=config.data, partition="iid", **PLAIN)
    context = build_simulation(before)  # as resume and export build it
    assert len(context.train) == 48 and len(context.test) == 12
    assert all(len(split.test) for split in context.partition.clients.values())


def test_a_cell_without_labels_is_known_again(unlabeled, tmp_path):
    result, _, config = unlabeled
    shutil.copytree(result.folder, tmp_path / "cells" / "a")
    assert state_of(Cell("a", config), tmp_path) is State.DONE


def test_the_plan_says_so(unlabeled, tmp_path):
    *_, config = unlabeled
    words = (f"data={config.data}", "clients=2", "bits=8", "model=small_cnn", "width=4", "width=8", "width=4")
    told = said("plan", "smoke", *words, "--no-measure")
    assert "has no labels, so all of its images are used for training" in told
    assert "note: width is given 3 times; 4 is used" in told  # as run says


def test_one_folder_per_client_is_not_labeled(tmp_path):
    data = photos(tmp_path / "photos", "phone", "car")
    natural, lines = settled(tiny(data=data, partition="natural", **{**PLAIN, "bits": [8]}))
    assert natural.evaluation.holdout == 0 and natural.partition == "natural" and "partition" not in lines[0]
    assert settled(tiny(data=data, partition="dirichlet", **PLAIN)) == (
        tiny(data=data, partition="dirichlet", **PLAIN),
        [],
    )


def test_nothing_held_out_is_not_measured_and_nothing_breaks(labeled):
    result, lines = labeled
    assert "no images are held out (evaluation.holdout), so accuracy is not measured" in lines
    assert sum(c.samples for c in result.clients.values()) == 54  # 60 photos, a tenth of them in the buffer
    assert result.global_accuracy is None and result.local_accuracy is None and result.controls is None
    summary = (result.folder / "summary.md").read_text()
    assert "No images are held out" in summary and "global accuracy not measured" in summary
    assert "not measured" in result.headline() and result.table() is not None
    assert "No images were held out" in write_report(result.folder).read_text()
    assert resume(result.folder, say=silent).clients == result.clients


def test_the_classifier_then_learns_from_every_label(labeled, tmp_path):
    result, _ = labeled
    run, path = FinishedRun.open(result.folder), tmp_path / "phone.fqssl"
    said("export", result.folder, "--client", "client-00", "--out", path)
    model, samples = fedqssl.load(path), result.clients["client-00"].samples
    assert model.manifest.card["data"]["labels used"] == samples == len(run.own("client-00").train)
    card = model.card()
    assert "| test accuracy | not measured |" in card and "Tested on 0 images" in card and "off on average" not in card
    images = run.own("client-00").train
    right = (model.logits(images).argmax(1) == run.own("client-00").train_labels).double().mean()
    assert right > 0.7  # of photos that it was fitted on
    assert "accuracy not measured" in said("probe", result.folder, "--all")
    assert "not measured of 0 test images" in said("probe", result.folder, "--client", "client-00")


def test_test_photos_of_ones_own_are_used_whatever_is_held_out(tmp_path):
    photos(tmp_path / "photos" / "train", "cat", "dog")
    data = photos(tmp_path / "photos" / "test", "cat", "dog", count=6, seed=1).removesuffix("/test")
    config = tiny(data=data, **PLAIN, **{"evaluation.holdout": 0, "evaluation.controls": "all"})
    result = start(config, tmp_path / "run", say=silent)
    assert result.global_accuracy is not None and result.controls is not None and result.local_accuracy is None
    assert all(c.controls is None and c.local_accuracy is None for c in result.clients.values())


def test_a_supervised_run_that_holds_nothing_out_is_exported(tmp_path):
    config = tiny(data=photos(tmp_path / "photos", "a", "b"), algorithm="fed_avg", **PLAIN, **{"evaluation.holdout": 0})
    result = start(config, tmp_path / "run", say=silent)
    assert len(device_bytes(FinishedRun.open(result.folder), "client-00")) > 1000


def test_half_may_be_held_out(tmp_path):
    context = build_simulation(tiny(data=photos(tmp_path, "a", "b", count=60), **PLAIN, **{"evaluation.holdout": 0.5}))
    assert len(context.test) == 60
    for split in context.partition.clients.values():
        assert abs(len(split.test) - len(split.train)) <= 1
