"""Every accuracy and signal of a run is of the features that it asks for, and what cannot be is said before training."""

import json

import pytest

from fedqssl.evaluation import extract_features, knn_accuracy
from fedqssl.evaluation.classifier import logistic_accuracy
from fedqssl.models.features import features_of
from fedqssl.reporting import write_report
from fedqssl.runs import start
from fedqssl.runs.evaluate import MONITOR_IMAGES, knn_monitor, load, some
from fedqssl.runs.folder import RunFolder
from tiny_run import figures, known_run, model_bytes, silent, tiny, tiny_context

DIM = {"pooled": 32, "grid2": 4 * 32, "stages": 32 + 16 * 8}
FLAT = """
from torch import nn
class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.fixture
def pooled():
    return known_run(rounds=1)


@pytest.mark.parametrize("kind", ["grid2", "stages"])
def test_accuracies_and_signals_are_of_the_runs_features(pooled, kind, tmp_path):
    result = known_run(rounds=1, features=kind)
    assert model_bytes(result.folder) == model_bytes(pooled.folder)  # training looks at none of it
    assert result.protocol != pooled.protocol
    line, context = json.loads((result.folder / "metrics.jsonl").read_text()), tiny_context(features=kind)
    assert line["collapse"]["dim"] == DIM[kind]
    served = load(context.task, 32, RunFolder.open(result.folder).latest().aggregated)
    encoder, train, test = features_of(served, kind), context.train, context.test
    known, asked = (some(len(part.images), MONITOR_IMAGES) for part in (train, test))
    x, y = extract_features(encoder, train.images[known]), extract_features(encoder, test.images[asked])
    assert knn_monitor(context, served) == float(knn_accuracy(x, train.labels[known], y, test.labels[asked]))
    part = some(len(train.images), 100)
    x, y = extract_features(encoder, train.images[part]), extract_features(encoder, test.images)
    assert result.global_accuracy == logistic_accuracy(x, train.labels[part], y, test.labels, 10)
    assert "<html" in write_report(result.folder, tmp_path / "report.html").read_text()


def test_views_may_be_smaller_than_the_images(tmp_path):
    result = start(tiny(rounds=1, features="stages", **{"views.size": 12}), tmp_path / "run", say=silent)
    assert json.loads((result.folder / "metrics.jsonl").read_text())["collapse"]["dim"] > 32


def test_too_few_stages_are_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "flat_backbone.py").write_text(FLAT)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"'stages' needs a network with 3 sizes of maps, but this one has 1") as found:
        start(tiny(model="flat_backbone:Flat", features="stages"), tmp_path / "x", say=silent)
    assert "\n" not in str(found.value) and not (tmp_path / "x").exists()


def test_a_supervised_run_is_the_same_with_any_features():
    runs = [known_run(algorithm="fed_avg", rounds=1, features=kind) for kind in ("pooled", "stages")]
    assert model_bytes(runs[0].folder) == model_bytes(runs[1].folder)
    first, second = (figures(run) for run in runs)
    assert first.pop("protocol") != second.pop("protocol") and first == second
