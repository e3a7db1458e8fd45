"""The digest that says which runs may be compared: what it is of, and that it never changes for runs that exist."""

import dataclasses
import json
from pathlib import Path

import pytest

from fedqssl.config import load_config, load_run_config
from fedqssl.config.load import BEFORE, accuracy_settings
from fedqssl.federated import protocol as module
from fedqssl.federated.algorithms import ALGORITHMS, AlgorithmError
from fedqssl.federated.protocol import protocol
from fedqssl.studies.paper.scales import SMALL

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((Path(__file__).parent / "protocol_digests.json").read_text())
"""By preset and algorithm, as the version before ``server.optimizer`` computed them."""


@pytest.mark.parametrize("preset", RECORDED)
def test_digests_of_existing_runs_stay(preset):
    since = {"cifar10-small": SMALL.bases["cifar10"].changes, "cifar100-paper": {"bits": SMALL.bits["config1"]}}
    since["quickstart"] = {
        **{"fraction": 1.0, "rounds": 8, "local_epochs": 2, "buffer_ratio": 0.1},
        **{"server.dequantize_epochs": 1, "evaluation.knn_every": 1},
    }
    recipe = since.get(preset, {})  # what these presets were then
    found = {name: protocol(load_config(preset, {**BEFORE, **recipe, "algorithm": name})) for name in RECORDED[preset]}
    assert found == RECORDED[preset]


@pytest.mark.parametrize(
    ("word", "digest"),
    [
        ("partition=iid", "9d9b9e379cc5"),
        ("partition=classes", "dea9458f4ef5"),
        ("partition=skew", "4ee043e52e48"),
        ("server.lr=0.1", "7158a7cf8d71"),
        ("images=100", "e1aaae1bed38"),
        ("lowbit.rule=latent", "6866f5f86aa4"),
        ("evaluation.probe_images=10", "1b74aca73bb1"),
        ("bits=4", "4dfed47e9a56"),
        ("deadline=3", "85f3dd9f7d5b"),
    ],
)
def test_digests_of_changed_settings_stay(word, digest):
    assert protocol(load_config("smoke", [word, *(f"{name}={value}" for name, value in BEFORE.items())])) == digest


def test_digests_of_the_committed_runs():
    cells = [path.parent for path in (ROOT / "docs" / "bench" / "small" / "cells").glob("*/result.json")]
    assert len(cells) > 50
    for cell in cells:
        assert protocol(load_run_config(cell)) == json.loads((cell / "result.json").read_text())["protocol"]


def test_new_runs_differ_from_those_of_before():
    """New settings that change the bytes are another protocol; a run's own file keeps the old ones."""
    new = load_config("smoke")
    assert (new.lowbit.scale, new.server.requantize_start) == ("grow", "average")
    prints = {protocol(load_config("smoke", {**BEFORE, key: value})) for key, value in
              (("lowbit.scale", "grow"), ("server.requantize_start", "average"))}  # fmt: skip
    assert len(prints | {protocol(new), RECORDED["smoke"]["fed_qssl"]}) == 4
    old = load_run_config(ROOT / "tests" / "compat" / "before_restructure" / "unfinished")
    assert (old.lowbit.scale, old.server.requantize_start) == ("round", "codes")


def test_a_new_setting_counts_only_where_it_is_not_at_its_default(monkeypatch):
    """Otherwise every release with a new setting would refuse to resume the runs of the one before."""
    base = load_config("smoke")
    monkeypatch.setattr(module, "_ALWAYS_COUNTED", module._ALWAYS_COUNTED - {"lr_schedule"})  # as if it came later
    without = protocol(base)
    monkeypatch.setattr(
        module, "accuracy_settings", lambda c: {k: v for k, v in accuracy_settings(c).items() if k != "lr_schedule"}
    )
    assert protocol(base) == without
    monkeypatch.setattr(module, "accuracy_settings", accuracy_settings)
    assert protocol(load_config("smoke", ["lr_schedule=cosine"])) != without


def test_an_unknown_algorithm_has_no_protocol():
    with pytest.raises(AlgorithmError, match="did you mean 'fed_qssl'"):
        protocol(load_config("smoke", ["algorithm=fed_qsl"]))


def test_protocol_is_of_what_affects_accuracy():
    base = load_config("smoke")
    print_of = protocol(base)
    assert len(print_of) == 12 and int(print_of, 16) >= 0
    for word in (
        "seed=5",
        "threads=2",
        "workers=1",
        "engine=flower",
        "data_dir=x",
        "classes_per_client=3",
        "server.lr=0.3",
    ):
        assert protocol(load_config("smoke", [word])) == print_of, word
    different = (
        "lr=0.2",
        "beta=0.5",
        "bits=4",
        "rounds=3",
        "ssl.temperature=0.1",
        "evaluation.probe_images=10",
        "data=x",
    )
    prints = {protocol(load_config("smoke", [word])) for word in different}
    assert len(prints | {print_of}) == len(different) + 1


def test_algorithms_that_were_mended_have_another_protocol(monkeypatch):
    """Results of before must not pass for the same."""
    for name, changed in (("fed_prox", True), ("fed_paq", True), ("fed_qssl", False)):
        config = load_config("smoke", {"algorithm": name})
        now = protocol(config)
        with monkeypatch.context() as patch:
            patch.setitem(ALGORITHMS, name, dataclasses.replace(ALGORITHMS[name], revision=0))
            assert (protocol(config) != now) is changed
        with monkeypatch.context() as patch:
            patch.setitem(ALGORITHMS, name, dataclasses.replace(ALGORITHMS[name], revision=7))
            assert protocol(config) != now


def test_one_place_has_one_name(tmp_path, monkeypatch):
    """The same images by another way round are the same protocol."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    here = load_config("smoke", {"data": f"folder:{tmp_path / 'photos'}"})
    assert protocol(load_config("smoke", {"data": "folder:../photos"})) == protocol(here)


def test_settings_of_the_server_that_came_later():
    """At their defaults they are no part of the digest (the recorded ones above); otherwise they are."""
    words = (
        *(
            "server.optimizer=momentum",
            "server.optimizer=fedexp",
            "server.momentum=0.5",
            "server.optimizer_lr=0.5",
            "server.ema=0.9",
        ),
        *("server.steps=1", "server.steps=2", "local_steps=1", "local_steps=2", "distill.temperature=0.2"),
        *("aggregation.weights=bits", "aggregation.weights=agreement", "aggregation.weights=mask"),
        *(
            "aggregation.robust=median",
            "aggregation.robust=krum",
            "aggregation.robust=fltrust",
            "aggregation.robust=embedding",
            "aggregation.max_share=0.5",
            "aggregation.batch_norm=buffer",
        ),
        *("privacy.client_epsilon=8", "privacy.delta=1e-6", "privacy.clip=2"),
    )
    prints = {protocol(load_config("smoke", [word])) for word in words}
    assert len(prints | {RECORDED["smoke"]["fed_qssl"]}) == len(words) + 1
