"""Tracking copies figures, is refused early when its package is absent, and never ends a run."""

import json
import sys
import types

import pytest

from fedqssl.cli.main import main
from fedqssl.config import load_config
from fedqssl.federated.protocol import protocol
from fedqssl.runs import RunError, RunFolder, start
from fedqssl.runs.tracking import TRACKERS, check_tracking, figures_of, tracking

TINY = {
    "model": "small_cnn",
    "width": 4,
    "images": 160,
    "clients": 2,
    "bits": [4, 8],
    "partition": "iid",
    "rounds": 1,
    "batch_size": 16,
    "workers": 1,
    "evaluation.probe_images": 100,
}
LINE = {
    "round": 3,
    "lr": 0.3,
    "loss": 4.0,
    "client_loss": {"a": [5.0, 4.5], "b": []},
    "weights": {"a": 1.0},
    "rejected": {"b": "too large"},
    "knn": None,
    "collapse": {"alignment": 0.5},
}


def tiny(**changes):
    return load_config("smoke", {**TINY, **changes})


def test_a_line_becomes_flat_numbers():
    assert figures_of(LINE) == {
        "lr": 0.3,
        "loss": 4.0,
        "client_loss/a": 4.5,
        "weights/a": 1.0,
        "rejected": 1.0,
        "collapse/alignment": 0.5,
    }


def test_tracking_is_no_part_of_the_protocol():
    assert protocol(tiny()) == protocol(tiny(track="wandb"))


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_an_absent_package_is_one_line_before_any_work(name, tmp_path, monkeypatch, capsys):
    for module in ("torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as stop:
        main(["run", "smoke", f"track={name}", "--out", str(tmp_path / "a")])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and f"pip install 'fedqssl[{name}]'" in said
    assert not (tmp_path / "a").exists()


def test_tensorboard_has_every_round_and_the_accuracies(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = start(tiny(track="tensorboard"), tmp_path / "run", say=lambda line: None)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, pytest.approx(line["loss"]))]
    assert events.Scalars("weights/client-00")[0].value == pytest.approx(line["weights"]["client-00"])
    assert events.Scalars("accuracy/global")[0].value == pytest.approx(result.global_accuracy)


class _Client:
    """Stands in for mlflow.MlflowClient."""

    def __init__(self, tracking_uri):
        self.uri, self.metrics, self.ended = tracking_uri, [], []

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "7"

    def create_run(self, number, run_name):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def log_param(self, run, name, value):
        pass

    def log_metric(self, run, name, value, step):
        self.metrics.append((run, name, value, step))

    def set_terminated(self, run, status):
        self.ended.append((run, status))


def test_mlflow_goes_to_the_runs_folder_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    made = []
    client = lambda tracking_uri: made.append(_Client(tracking_uri)) or made[-1]  # noqa: E731
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=client))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for done in (0, 2):
        with tracking(tiny(track="mlflow"), RunFolder(tmp_path), done, print) as tracker:
            tracker.round(LINE)
    assert all(c.uri == (tmp_path / "mlruns").as_uri() for c in made)
    assert ("r1", "loss", 4.0, 3) in made[0].metrics and ("r1", "loss", 4.0, 3) in made[1].metrics
    assert made[1].ended == [("r1", "KILLED")]  # neither came to its end


def test_wandb_is_offline_unless_told(tmp_path, monkeypatch):
    given, logged, codes = {}, [], []
    run = types.SimpleNamespace(
        log=lambda figures, step: logged.append((figures["loss"], step)),
        finish=lambda exit_code: codes.append(exit_code),
    )
    fake = types.SimpleNamespace(init=lambda **words: given.update(words) or run, Settings=lambda **words: words)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with tracking(tiny(track="wandb"), RunFolder(tmp_path), 0, print) as tracker:
        tracker.round(LINE)
    assert given["mode"] == "offline" and given["dir"] == str(tmp_path) and logged == [(4.0, 3)]
    assert codes == [1]  # the run has not come to its end


def test_a_tracker_that_fails_is_said_once_and_stops_nothing(tmp_path, monkeypatch):
    class Broken:
        def log(self, figures, step):
            raise ConnectionError("server\ngone")

        def close(self, finished):
            raise AssertionError("it has stopped already")

    monkeypatch.setitem(TRACKERS, "wandb", lambda config, folder, done: Broken())
    said = []
    with tracking(tiny(track="wandb"), RunFolder(tmp_path), 0, said.append) as tracker:
        tracker.round(LINE)
        tracker.round(LINE)
    assert len(said) == 1 and "server gone" in said[0] and "\n" not in said[0]


def test_a_tracker_that_cannot_start_is_one_line(tmp_path, monkeypatch):
    def fails(config, folder, done):
        raise PermissionError("no such place")

    monkeypatch.setitem(TRACKERS, "wandb", fails)
    with pytest.raises(RunError, match="track=none"), tracking(tiny(track="wandb"), RunFolder(tmp_path), 0, print):
        pass


def test_no_tracking_needs_nothing():
    check_tracking("none")
