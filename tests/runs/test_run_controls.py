"""Controls stand beside every accuracy of a run, and a sentence says whether the run was worth it."""

import json

import pytest

from fedqssl.engines.pool import Pool
from fedqssl.evaluation.controls import measure_controls
from fedqssl.runs import RunResult, start
from fedqssl.runs.controls import run_controls
from fedqssl.runs.evaluate import global_accuracy
from tiny_run import rounds_of, silent, tiny, tiny_context


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunResult:
    return start(tiny(rounds=1, **{"evaluation.controls": "all"}), tmp_path_factory.mktemp("c") / "run", say=silent)


def test_they_are_in_the_result_the_summary_and_the_table(finished):
    kept = json.loads((finished.folder / "result.json").read_text())
    assert sorted(kept["controls"]) == ["chance", "commonest", "hog", "pixels", "untrained"]
    assert sorted(kept["clients"]["client-00"]["controls"]) == ["chance", "commonest", "hog", "pixels"]
    assert RunResult.read(finished.folder) == finished
    page = (finished.folder / "summary.md").read_text()
    assert finished.verdict() in page and "| logistic regression on raw pixels |" in page
    assert finished.clients["client-01"].control() in page
    assert finished.table().caption == finished.verdict()


def test_they_see_what_the_clients_see(finished):
    context = tiny_context(rounds=1)
    split, images, labels = context.partition.clients["client-01"], context.train.images, context.train.labels
    own = measure_controls(images[split.train], labels[split.train], images[split.test], labels[split.test], 10)
    assert finished.clients["client-01"].controls == own.to_json()
    everyone = measure_controls(images, labels, context.test.images, context.test.labels, 10)
    assert {**finished.controls, "untrained": 0} == {**everyone.to_json(), "untrained": 0}


def test_the_untrained_network_is_the_control_of_that_name(finished):
    context = tiny_context(rounds=1, algorithm="untrained")
    after, _ = rounds_of(context)
    assert finished.controls["untrained"] == pytest.approx(global_accuracy(context, 32, after.aggregated), abs=0.02)


def test_none_where_nothing_can_be_measured_or_nothing_is_asked():
    context = tiny_context()
    assert context.config.evaluation.controls == "none"
    with Pool(context) as pool:
        assert run_controls(context, pool) == (None, {})


def test_a_result_from_before_has_none(finished, tmp_path):
    kept = json.loads((finished.folder / "result.json").read_text())
    del kept["controls"]
    for client in kept["clients"].values():
        del client["controls"]
    (tmp_path / "result.json").write_text(json.dumps(kept))
    old = RunResult.read(tmp_path)
    assert old.controls is None and old.verdict() == "" and old.clients["client-00"].control() == "-"
