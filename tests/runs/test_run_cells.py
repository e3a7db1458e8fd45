"""Cells that are skipped, resumed, failing, interrupted; with runs that are made up, but for one process that dies."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fake_runs import fake_run, smoke
from fedqssl.cli.main import app, main
from fedqssl.config import load_run_config
from fedqssl.runs import Progress, lifecycle
from fedqssl.runs import run_cells as running
from fedqssl.runs.cells import Cell, CellError, State, state_of
from fedqssl.runs.run_cells import DIED, in_processes, run_cell, run_cells
from fedqssl.runs.sweep import cell_name, plan_sweep
from tiny_run import silent

runner = CliRunner()


class Engine:
    """Stands in for ``start`` and ``resume``."""

    def __init__(self):
        self.started, self.resumed, self.fails = [], [], {}

    def start(self, config, folder, *, progress, as_written):
        assert as_written
        self.started.append(folder.name)
        progress.say("round 1/1 not to be shown")
        progress.say("warning: to be shown")
        error = self.fails.get(config.algorithm)
        if error is not None:
            raise error
        fake_run(folder, config, 0.1 + config.beta / 100, 0.5)

    def resume(self, folder, *, progress, images_of):
        self.images_of = images_of.data
        self.resumed.append(folder.name)
        (folder / "result.json").write_text((folder / "kept.json").read_text())


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setattr(running, "start", made.start)
    monkeypatch.setattr(running, "resume", made.resume)
    return made


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


LOW = ("reproduce", "table_low", "--scale", "smoke")


def test_finished_cells_are_skipped_and_interrupted_ones_resumed(engine, tmp_path):
    cells = [Cell(f"c{i}", smoke(seed=i)) for i in range(3)]
    fake_run(cells[0].folder(tmp_path), cells[0].config)
    fake_run(cells[1].folder(tmp_path), cells[1].config)
    begun = cells[1].folder(tmp_path)
    (begun / "result.json").rename(begun / "kept.json")
    said, ended = [], []
    error = run_cells([*cells, cells[2]], tmp_path, None, Progress(said.append), ended.append)
    assert error is None and ended == cells
    assert engine.started == ["c2"] and engine.resumed == ["c1"] and engine.images_of == "scenes"
    assert said[0] == "2 cells to run, 1 done already"
    assert said[1].startswith("cell 1 of 2: c1: global 50.0%, local 70.0%; about ")
    assert "c2: warning: to be shown" in said and not any("not to be shown" in line for line in said)


def test_a_failing_cell_does_not_lose_the_others(engine, tmp_path, capsys):
    engine.fails = {"fed_simclr": RuntimeError("went\nwrong"), "untrained": ValueError("went wrong")}
    error = fails(capsys, *LOW, "--out", tmp_path)
    assert "2 of 4 cells failed (scenes-low-fed_simclr-seed0, scenes-low-untrained-seed0: went wrong)" in error
    assert "RuntimeError" in (tmp_path / "failed" / "scenes-low-fed_simclr-seed0.txt").read_text()
    table = json.loads((tmp_path / "table_low.json").read_text())
    assert {row["algorithm"] for row in table["rows"]} == {"fed_qssl", "server_only"} and len(table["missing"]) == 2
    engine.fails, engine.started = {}, []
    assert runner.invoke(app, [*LOW, "--out", str(tmp_path)]).exit_code == 0
    assert engine.started == ["scenes-low-fed_simclr-seed0", "scenes-low-untrained-seed0"]
    assert len(json.loads((tmp_path / "table_low.json").read_text())["rows"]) == 4


def test_more_seeds_of_some_rows_join_the_table(engine, tmp_path):
    out = ["--out", str(tmp_path)]
    assert runner.invoke(app, [*LOW, *out]).exit_code == 0
    assert runner.invoke(app, [*LOW, *out, "--seeds", "3", "--only", "fed_qssl,fed_simclr"]).exit_code == 0
    assert len(engine.started) == 4 + 4
    rows = json.loads((tmp_path / "table_low.json").read_text())["rows"]
    assert {row["algorithm"]: row["seeds"] for row in rows} == {
        "fed_qssl": 3,
        "fed_simclr": 3,
        "server_only": 1,
        "untrained": 1,
    }
    assert (tmp_path / "cells.csv").read_text().startswith("cell,algorithm,bits,seed")


def test_ctrl_c_says_how_to_resume(engine, tmp_path):
    engine.fails = {"fed_qssl": KeyboardInterrupt()}
    result = runner.invoke(app, [*LOW, "--seeds", "2", "--jobs", "1", "--out", str(tmp_path / "a b")])
    assert result.exit_code == 130
    assert result.output.splitlines()[-1].endswith(
        f"resume with: fedqssl reproduce table_low --scale smoke --seeds 2 --jobs 1 --out '{tmp_path / 'a b'}'"
    )
    result = runner.invoke(app, ["sweep", "smoke", "beta=0.1;0.5", "--out", str(tmp_path / "s")])
    assert result.exit_code == 130 and f"fedqssl sweep smoke 'beta=0.1;0.5' --out {tmp_path / 's'}" in result.output


def test_dry_run_lists_cells(engine, tmp_path):
    result = runner.invoke(app, [*LOW, "--dry-run", "--out", str(tmp_path)])
    assert "new   scenes-low-fed_qssl-seed0\n" in result.output and "4 cells" in result.output
    assert not engine.started and not list(tmp_path.iterdir())


def test_wrong_requests_end_in_one_line(engine, tmp_path, capsys):
    out = ("--out", tmp_path)
    assert "unknown experiment 'tabel1'; did you mean 'table1'" in fails(capsys, "reproduce", "tabel1", *out)
    assert "unknown scale 'smal'; did you mean 'small'" in fails(capsys, "reproduce", "table1", "--scale", "smal", *out)
    assert "did you mean 'fed_qssl'" in fails(capsys, *LOW, "--only", "fed_qsl", *out)
    assert "--data cifar10=SPEC" in fails(capsys, "reproduce", "all", "--scale", "small", "--data", "x", *out)
    missing = fails(capsys, *LOW, "--data", f"parquet:{tmp_path / 'nothing'}", *out)
    assert "nothing" in missing and "failed" not in missing
    (tmp_path / "file").write_text("")
    assert "cannot be written" in fails(capsys, *LOW, "--out", tmp_path / "file")
    assert not engine.started
    cell = tmp_path / "other" / "cells" / "scenes-low-fed_qssl-seed5"
    fake_run(cell, smoke(algorithm="fed_qssl", seed=5, images=77))
    assert "images 77, now 200" in fails(capsys, *LOW, "--out", tmp_path / "other")
    assert not engine.started


def test_a_sweep_ends_in_a_table_and_can_be_extended(engine, tmp_path):
    words = ["sweep", "smoke", "lr=0.2", "beta=0.1;0.5", "seed=0;1", "--out", str(tmp_path)]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert engine.started == [f"beta={b}_seed={s}" for b in ("0.1", "0.5") for s in (0, 1)]
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    assert lines[0].startswith("algorithm,bits,beta,global") and len(lines) == 3 and '"4,6,8,12",0.1,' in lines[1]
    words[3] = "beta=0.1;0.5;5"
    assert runner.invoke(app, words).exit_code == 0
    assert engine.started[4:] == ["beta=5_seed=0", "beta=5_seed=1"]
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 4


def test_a_sweep_over_the_learning_rate_is_one_difference(engine, tmp_path):
    result = runner.invoke(app, ["sweep", "smoke", "lr=0.1;0.3", "bits=4,8;8,8,8", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "sweep.csv").read_text().splitlines()
    assert lines[0].startswith("algorithm,bits,lr,clients,global") and len(lines) == 5


def test_a_sweep_over_partitions_whose_settings_differ(engine, tmp_path):
    result = runner.invoke(app, ["sweep", "smoke", "partition=iid;dirichlet;classes", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["smoke", "beta=0.1"], "several values"),
        (["smoke", "beta=0.1;;5"], "empty value"),
        (["smoke", "beta=1;1"], "repeated"),
        (["smoke", "beta=1;1.0"], "the same run"),
        (["smoke", "beta=1;x"], "beta"),
        (["smoke", "bta=1;2"], "did you mean 'beta'"),
    ],
)
def test_wrong_grids_end_in_one_line(engine, capsys, tmp_path, words, says):
    assert says in fails(capsys, "sweep", *words, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_names_of_cells_are_file_names():
    assert cell_name(["beta=0.1", "bits=4,4"]) == "beta=0.1_bits=4,4"
    odd = [cell_name([f"data=folder:/x/{c}"]) for c in "ab"]
    assert odd[0] != odd[1] and not any("/" in name for name in odd)
    assert len(cell_name(["bits=" + ",".join(["12"] * 100)])) <= 100
    assert [c.config.seed for c in plan_sweep("smoke", ["seed=3;4;"]).cells] == [3, 4]


def test_a_process_that_dies_takes_only_its_cell_along(tmp_path, monkeypatch):
    (tmp_path / "killer.py").write_text("import os\nclass Net:\n    def __init__(self, *a, **k): os._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    deadly = smoke(model="killer:Net", images=100, partition="iid", workers=1)
    unknown = smoke(algorithm="fed_magic", workers=1)
    found = list(in_processes([Cell("deadly", deadly), Cell("unknown", unknown)], tmp_path, 2))
    errors = {outcome.cell.name: outcome.error for outcome in found}
    assert errors["deadly"] == DIED and "fed_magic" in errors["unknown"]


def test_one_damaged_cell_costs_one_figure(engine, tmp_path, capsys):
    """The other experiments are run and written, and the error says which file is wrong."""
    wanted = ("reproduce", "figure1", "figure3", "table_low", "--scale", "smoke", "--out", tmp_path)
    assert runner.invoke(app, [str(word) for word in wanted[:2] + wanted[4:]]).exit_code == 0
    (tmp_path / "cells" / "scenes-config1-fed_qssl-seed0" / "partition.json").unlink()
    error = fails(capsys, *wanted)
    assert "not written: figure1" in error and "partition.json cannot be read" in error and "figure3" not in error
    assert (tmp_path / "figure3.md").is_file() and (tmp_path / "table_low.md").is_file()
    (tmp_path / "cells" / "scenes-config1-fed_qssl-seed0" / "metrics.jsonl").write_text('{"round": 1}\n')
    assert "metrics.jsonl cannot be read" in fails(capsys, *wanted)
    other = tmp_path / "cells" / "scenes-low-untrained-seed0" / "result.json"
    other.write_text("{")
    error = fails(capsys, "reproduce", "figure3", "--scale", "smoke", "--collect", "--out", tmp_path)
    assert "cells.csv" in error and str(other) in error


def test_cells_csv_lists_all_that_is_done(engine, tmp_path):
    for words in (LOW, ["reproduce", "figure1", "--scale", "smoke"], LOW):
        assert runner.invoke(app, [*words, "--out", str(tmp_path)]).exit_code == 0
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    assert len(lines) == 1 + len(list((tmp_path / "cells").glob("*/result.json"))) == 1 + 4 + 3


def test_cells_say_where_the_images_are(engine, tmp_path, capsys):
    """A second command need not repeat --data; two data sets never share a cell; useless --data is refused."""
    table3 = ["reproduce", "table3", "--scale", "smoke", "--only", "untrained", "--out", str(tmp_path)]
    assert runner.invoke(app, [*table3, "--data", "digits"]).exit_code == 0
    assert engine.started == ["cifar100-config2-untrained-seed0"]
    assert runner.invoke(app, table3).exit_code == 0 and runner.invoke(app, [*table3, "--collect"]).exit_code == 0
    assert len(engine.started) == 1
    assert runner.invoke(app, ["reproduce", "table2", *table3[2:]]).exit_code == 0
    assert engine.started[1:] == ["scenes-config2-untrained-seed0"]
    assert "none of these experiments uses cifar10" in fails(capsys, *table3, "--data", "cifar10=scenes")


def pictures(folder, count=60, seed=0):
    """A folder of labeled noise."""
    draws = np.random.default_rng(seed)
    for i in range(count):
        place = folder / f"class{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(place / f"{i:02d}.png")


def test_a_cell_notes_its_data_as_they_were_written_and_what_they_hold(tmp_path, monkeypatch):
    """So that it is the same cell on another machine with the same images, and another one with other images."""
    pictures(tmp_path / "here" / "photos")
    monkeypatch.chdir(tmp_path / "here")
    small = {"model": "small_cnn", "width": 4, "images": None, "clients": 2, "bits": 8, "rounds": 2, "workers": 1}
    small |= {"partition": "iid", "batch_size": 16, "image_size": 16, "algorithm": "fed_simclr"}
    cell = Cell("c", smoke(data="folder:photos", **small))
    real = lifecycle.play_round

    def once(context, engine, pool, before, number, *more):
        if number == 1:
            raise KeyboardInterrupt
        return real(context, engine, pool, before, number, *more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lifecycle, "play_round", once)
        run_cell(cell, tmp_path / "out", Progress(silent))
    folder = cell.folder(tmp_path / "out")
    assert load_run_config(folder).data == "folder:photos"
    assert str(tmp_path) not in (folder / "config.toml").read_text()
    assert len(json.loads((folder / "environment.json").read_text())["images_sha256"]) == 64

    shutil.move(tmp_path / "here" / "photos", tmp_path / "there")
    moved, other = (Cell("c", smoke(data=f"folder:{tmp_path / name}", **small)) for name in ("there", "other"))
    pictures(tmp_path / "other", seed=1)
    assert state_of(moved, tmp_path / "out") is State.BEGUN
    with pytest.raises(CellError, match=r"was run with other settings \(data "):
        state_of(other, tmp_path / "out")
    with pytest.raises(CellError, match="beta"):
        state_of(Cell("c", moved.config.model_copy(update={"partition": "dirichlet"})), tmp_path / "out")
    run_cell(moved, tmp_path / "out", Progress(silent))
    assert state_of(moved, tmp_path / "out") is State.DONE and load_run_config(folder).data == "folder:photos"
    (folder / "environment.json").unlink()  # a cell of which only the results were kept
    with pytest.raises(CellError, match=r"was run with other settings \(data "):
        state_of(moved, tmp_path / "out")
