"""Fleets of hundreds and thousands of clients: what is kept, evaluated and shown does not grow with their number."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import cli
from fedqssl.config import load_config
from fedqssl.federated.context import build_simulation
from fedqssl.reporting import write_report
from fedqssl.reporting.data import SHOWN, read_run
from fedqssl.runs import RunError, RunFolder, resume, start
from fedqssl.runs.evaluate import MOST_CLIENTS, evaluated, held_out
from fedqssl.runs.folder import Checkpoint, RunTotals
from fedqssl.runs.shared_models import FEW
from fedqssl.runs.time_left import MOST_DRAWN, TimeLeft
from tiny_run import figures, model_bytes, silent, stopped_after

CLIENTS = 240
NAMES = [f"client-{i:03d}" for i in range(CLIENTS)]


def tiny_images(folder: Path, count: int) -> Path:
    """Random images of 8x8 in ``folder``, and some for the server's buffer in ``folder/buffer``."""
    rng = np.random.default_rng(0)
    for place, sizes in ((folder, {"train": count, "test": 40}), (folder / "buffer", {"train": 40, "test": 10})):
        place.mkdir(parents=True, exist_ok=True)
        for split, size in sizes.items():
            images, labels = rng.integers(0, 256, (size, 3, 8, 8), dtype=np.uint8), rng.integers(0, 3, size)
            np.savez(place / f"{split}.npz", images=images, labels=labels)
    return folder


def fleet(folder: Path, clients: int = CLIENTS, **changes):
    """A fleet of two bitwidths, four clients per round."""
    half = clients // 2
    values = {
        **{"data": f"arrays:{folder}", "buffer": f"arrays:{folder}/buffer", "buffer_images": 40, "image_size": 8},
        **{
            "images": None,
            "bits": f"4x{half},8x{half}",
            "partition": "iid",
            "fraction": 4 / clients,
            "rounds": 2,
            "batch_size": 4,
        },
        **{"model": "small_cnn", "width": 2, "workers": 1, "algorithm": "fed_simclr", "evaluation.clients": 12},
        **{"evaluation.knn_every": 0, "evaluation.controls": "none", "buffer_ratio": None},
    }
    return load_config("smoke", {**values, **changes})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny_images(tmp_path_factory.mktemp("images"), 12 * CLIENTS)


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory):
    said = []
    result = start(fleet(images), tmp_path_factory.mktemp("runs") / "fleet", say=said.append)
    return result, said


def test_a_checkpoint_has_a_file_per_group_and_what_differs(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    models = {name: b"four" if i % 2 else b"eight" for i, name in enumerate(NAMES)}
    folder.save(Checkpoint(1, models, None, RunTotals()))
    models = {**models, "client-007": b"own"}
    folder.save(Checkpoint(2, models, None, RunTotals(up={"client-007": 3})))
    again = RunFolder(folder.path)
    assert again.latest().payloads == models and again.latest().totals.up == {"client-007": 3}
    newest = folder.checkpoints / "round-00002"
    state = json.loads((newest / "state.json").read_text())
    assert list(state["models"]) == ["client-007"] and len(state["common"]) == 2
    assert len((newest / "state.json").read_text()) < 1500
    again.save(
        Checkpoint(3, models, None, RunTotals())
    )  # a folder that was opened goes on with the groups that it read
    assert RunFolder(folder.path).latest().payloads == models
    (newest.with_name("round-00003") / "clients.json").write_text("[]")
    with pytest.raises(RunError, match="was modified"):
        RunFolder(folder.path).latest()


def test_equal_files_of_two_checkpoints_are_written_once(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    for number in (1, 2):
        folder.save(Checkpoint(number, dict.fromkeys(NAMES, b"same"), None, RunTotals()))
    one, two = (next((folder.checkpoints / f"round-0000{n}").glob("model-*")) for n in (1, 2))
    assert one.stat().st_ino == two.stat().st_ino


def test_small_fleets_keep_the_format_of_older_versions(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    models = dict.fromkeys(NAMES[:FEW], b"x")
    folder.save(Checkpoint(1, models, None, RunTotals()))
    state = json.loads((folder.checkpoints / "round-00001" / "state.json").read_text())
    assert state["models"].keys() == models.keys()
    assert state.keys() == {"rounds_done", "totals", "models", "sha256", "metrics", "digest"}


def test_a_sample_is_evaluated_and_the_run_says_so(images, finished):
    result, said = finished
    context = build_simulation(fleet(images))
    chosen = evaluated(context)
    assert len(chosen) == len(set(chosen)) == 12 and sorted(held_out(context)) == chosen
    assert sorted(n for n, c in result.clients.items() if c.local_accuracy is not None) == chosen
    assert any("evaluating 12 of 240 clients" in line for line in said)
    assert evaluated(build_simulation(fleet(images, seed=1))) != chosen
    assert len(evaluated(build_simulation(fleet(images, **{"evaluation.clients": None})))) == min(CLIENTS, MOST_CLIENTS)


def test_every_client_has_its_model_in_one_file_per_bitwidth(finished):
    paths = sorted(finished[0].folder.glob("clients/*/model.fqssl"))
    assert len(paths) == CLIENTS and len({path.stat().st_ino for path in paths}) == 2


def test_resumed_to_the_same_bytes(images, finished, tmp_path):
    with stopped_after(1):
        start(fleet(images), tmp_path / "run", say=silent)
    result = resume(tmp_path / "run", say=silent)
    assert model_bytes(tmp_path / "run") == model_bytes(finished[0].folder)
    assert figures(result) == figures(finished[0])


def test_tables_have_a_row_per_bitwidth(finished):
    result = finished[0]
    head, rows = result.distributions()
    assert [row[0] for row in rows] == ["4", "8"] and len(head) == len(rows[0])
    column = {name: [row[i] for row in rows] for i, name in enumerate(head)}
    assert column["clients"] == ["120", "120"]
    took = [sum(c.bytes_up > 0 for c in result.clients.values() if c.bits == b) for b in (4, 8)]
    assert column["took part"] == list(map(str, took)) and sum(took) > 4
    assert sum(map(int, column["measured"])) == 12
    assert result.table().row_count == 2
    summary = (result.folder / "summary.md").read_text()
    assert "client-000 |" not in summary and "--client NAME" in summary and len(summary) < 5000


def test_the_report_shows_some_clients_and_finds_any(finished, tmp_path, capsys):
    result = finished[0]
    run = read_run(result.folder)
    known = {n: c.local_accuracy for n, c in result.clients.items() if c.local_accuracy is not None}
    assert {c.name for c in run.clients} == known.keys() and len(known) <= SHOWN
    page = write_report(result.folder, tmp_path / "report.html").read_text()
    assert "240 clients" in page and "How accuracies are spread" in page and page.count("client-") < 2000
    someone = next(n for n, c in result.clients.items() if c.bytes_up and c.local_accuracy is None)
    told = cli(capsys, "report", result.folder, "--client", someone)
    assert someone in told and "took part in rounds" in told and "not measured" in told
    with pytest.raises(RunError, match="has no client 'client-24O'; did you mean"):
        run.client("client-24O")


def test_time_left_looks_at_fewer_rounds_of_large_fleets(images, monkeypatch):
    context, looked = build_simulation(fleet(images, rounds=1000)), []
    monkeypatch.setattr("fedqssl.runs.time_left.sampled", lambda context, n: looked.append(n) or ["client-000"])
    left = TimeLeft()
    left.saw(context, {"training_seconds": {"client-000": 1.0}, "clients_wall_seconds": 1.0}, 1.5)
    assert left.left(context, 0) == pytest.approx(1500)
    assert len(looked) == MOST_DRAWN // CLIENTS


KILLED = """
import sys; from pathlib import Path
sys.path[:0] = {paths!r}
import os, signal
from fedqssl.runs import lifecycle, start
from test_large_fleet import fleet, silent
real = lifecycle.RunFolder.save
def save(self, checkpoint):
    real(self, checkpoint)
    if checkpoint.rounds_done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
lifecycle.RunFolder.save = save
start(fleet(Path({images!r}), 10_000, workers=2, rounds=3), Path({out!r}), say=silent)
"""


@pytest.mark.slow
def test_ten_thousand_clients_killed_and_resumed(tmp_path):
    """Kill -9 after a checkpoint, then resume: the bytes of a run that was never interrupted."""
    images = tiny_images(tmp_path / "images", 120_000)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    script = KILLED.format(paths=paths, images=str(images), out=str(tmp_path / "killed"))
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=3600)
    assert done.returncode == -signal.SIGKILL
    whole = start(fleet(images, 10_000, workers=2, rounds=3), tmp_path / "whole", say=silent)
    result = resume(tmp_path / "killed", say=silent)
    assert figures(result) == figures(whole)
    assert model_bytes(tmp_path / "killed") == model_bytes(tmp_path / "whole")
    state = max(tmp_path.glob("killed/checkpoints/*/state.json")).read_text()
    assert len(state) < 4000
