"""``fedqssl compare``: groups by seed, refuses to mix protocols, says what is wrong in one line."""

import csv
import io
import json
import shutil

import pytest
from typer.testing import CliRunner

from fake_runs import fake_run, smoke
from fedqssl.cli.main import app, main

runner = CliRunner()


def fails(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def table(*arguments) -> list[dict[str, str]]:
    result = runner.invoke(app, ["compare", *map(str, arguments), "--format", "csv"])
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.output)))


@pytest.fixture
def runs(tmp_path):
    """Two algorithms, three and one seeds."""
    for seed, value in enumerate((0.50, 0.54, 0.52)):
        fake_run(tmp_path / f"q{seed}", smoke(seed=seed, workers=1 + seed), value)
    fake_run(tmp_path / "deep" / "s0", smoke(algorithm="fed_simclr", bits=[32] * 4), 0.4)
    return tmp_path


def test_groups_have_mean_and_deviation_over_seeds(runs):
    first, second = table(runs)
    if first["algorithm"] != "fed_qssl":
        first, second = second, first
    assert (first["bits"], first["seeds"], first["seed_list"]) == ("4,6,8,12", "3", "0 1 2")
    assert float(first["global"]) == pytest.approx(52) and float(first["global_deviation"]) == pytest.approx(2)
    assert (second["algorithm"], second["bits"], second["seeds"]) == ("fed_simclr", "32", "1")
    assert second["global_deviation"] == ""


def test_forms_and_files(runs):
    shown = runner.invoke(app, ["compare", str(runs)]).output
    assert "52.00 ± 2.00" in shown and "fed_simclr" in shown
    out = runs / "t.tex"
    assert runner.invoke(app, ["compare", str(runs), "--out", str(out)]).exit_code == 0
    assert r"52.00 $\pm$ 2.00" in out.read_text() and r"fed\_qssl" in out.read_text()
    assert "| fed_qssl |" in runner.invoke(app, ["compare", str(runs), "--format", "markdown"]).output


def test_mixed_protocols_are_named_and_need_across(runs, capsys):
    fake_run(runs / "other", smoke(beta=5, rounds=9))
    error = fails(capsys, runs)
    assert "beta (1, 5)" in error and "rounds (2, 9)" in error and "--across" in error
    assert "rounds (2, 9)" in fails(capsys, runs, "--across", "beta")
    words = error.split("--across ")[1].split()[0]
    rows = table(runs, "--across", words)
    assert len(rows) == 3 and {row["beta"] for row in rows} == {"1.0", "5.0"}
    assert "did you mean 'beta'" in fails(capsys, runs, "--across", "bta")


def test_a_learning_rate_of_the_server_that_follows_is_no_difference_of_its_own(runs, capsys):
    fake_run(runs / "slow", smoke(lr=0.1, seed=8))
    error = fails(capsys, runs)
    assert "lr (0.3, 0.1)" in error or "lr (0.1, 0.3)" in error
    assert "server.lr" not in error


def test_the_same_name_for_other_images_is_refused(runs, capsys):
    fake_run(runs / "moved", smoke(seed=7), sha="b")
    assert "different images" in fails(capsys, runs)


@pytest.mark.parametrize("changes", [{"image_size": 64}, {"buffer": "digits"}, {"evaluation.holdout": 0.1}])
def test_settings_that_change_the_images_may_be_compared_across(runs, changes, capsys):
    """They have other images, of course; and without being told, nothing is mixed."""
    fake_run(runs / "other", smoke(seed=7, **changes), sha="b")
    key, error = next(iter(changes)), fails(capsys, runs)
    assert f"{key} (" in error and "different images" not in error
    assert len(table(runs, "--across", error.split("--across ")[1].split()[0])) == 3


def test_equal_seeds_count_once_or_are_refused(runs, capsys):
    fake_run(runs / "copy", smoke(seed=0), 0.50)
    assert {row["seeds"] for row in table(runs)} == {"3", "1"}
    fake_run(runs / "new", smoke(seed=0), 0.51)
    assert "same settings and seed but different results" in fails(capsys, runs)


def test_runs_that_have_not_ended(runs, capsys):
    (runs / "q1" / "result.json").unlink()
    assert "q1 is not finished" in fails(capsys, runs) and "--finished" in fails(capsys, runs / "q1")
    assert {row["seeds"] for row in table(runs, "--finished")} == {"2", "1"}
    assert "is finished yet" in fails(capsys, runs / "q1", "--finished")


def test_bad_input_ends_in_one_line(runs, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there is no run in" in fails(capsys, tmp_path / "empty")
    assert "is not a folder" in fails(capsys, tmp_path / "nowhere")
    (tmp_path / "there.md").write_text("mine")
    assert "--overwrite" in fails(capsys, runs, "--out", tmp_path / "there.md")
    assert "no folder" in fails(capsys, runs, "--out", tmp_path / "no" / "t.md")
    assert "is a folder" in fails(capsys, runs, "--out", tmp_path)
    assert "for a file use" in fails(capsys, runs, "--out", tmp_path / "t.txt", "--format", "terminal")
    (runs / "q0" / "result.json").write_text(json.dumps({"clients": 3}))
    assert "cannot be read" in fails(capsys, runs)


def test_attacked_and_stopped_runs_are_not_equals_of_whole_ones(runs, capsys):
    fake_run(runs / "attacked", smoke(seed=7, engine="attack-noise"), 0.1)
    assert "engine (attack-noise, any)" in fails(capsys, runs)
    shutil.rmtree(runs / "attacked")
    fake_run(runs / "stopped", smoke(seed=7), 0.1)
    path = runs / "stopped" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rounds": 1}))
    assert "rounds (2, 1 of 2)" in fails(capsys, runs)
