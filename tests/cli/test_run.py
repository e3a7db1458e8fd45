"""``run``, ``config`` and ``list``: what they call, print and refuse."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rich.table import Table
from typer.testing import CliRunner

from fedqssl.cli import listing
from fedqssl.cli.arguments import split_words
from fedqssl.cli.main import app, main
from fedqssl.config import PRESETS, load_config
from fedqssl.runs.find import next_folder

runner = CliRunner()


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """``fedqssl.runs`` with stand-ins that note their calls; ``error`` makes them end early."""
    monkeypatch.chdir(tmp_path)
    module = SimpleNamespace(calls=[], error=None)

    def finish(folder, progress):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").touch()
        progress.say("round 1 [loss] 3.2")
        if module.error is not None:
            raise module.error
        return SimpleNamespace(table=lambda: Table("client"), folder=folder)

    def start(config, out, *, progress, overwrite=False):
        module.calls.append(("start", config, out, overwrite))
        return finish(out, progress)

    def resume(folder, *, exact, progress):
        module.calls.append(("resume", folder))
        return finish(folder, progress)

    monkeypatch.setattr("fedqssl.runs.start", start)
    monkeypatch.setattr("fedqssl.runs.resume", resume)
    return module


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def test_run_starts_with_the_settings(runs):
    result = runner.invoke(app, ["run", "smoke", "rounds=3", "bits=4,6", "--out", "there", "seed=1", "--overwrite"])
    assert result.exit_code == 0, result.output
    assert runs.calls == [("start", load_config("smoke", ["rounds=3", "bits=4,6", "seed=1"]), Path("there"), True)]
    assert "round 1 [loss] 3.2" in result.output and "client" in result.output and "there" in result.output


def test_run_needs_no_words_and_numbers_its_folders(runs):
    for number in (1, 2):
        assert runner.invoke(app, ["run"]).exit_code == 0
        assert runs.calls[-1] == ("start", load_config("quickstart"), Path(f"runs/quickstart-{number}"), False)


def test_run_takes_a_file(runs, tmp_path):
    (tmp_path / "my=a.toml").write_text("rounds = 3\nbits = [4, 6]\n")
    assert runner.invoke(app, ["run", "my=a.toml", "lr=0.5"]).exit_code == 0
    assert runs.calls[0][1] == load_config(Path("my=a.toml"), ["lr=0.5"])
    assert runs.calls[0][2] == Path("runs/my=a-1")


def test_the_next_number_is_above_all(tmp_path):
    for name in ("smoke-1", "smoke-7", "smoke-x", "other-9"):
        (tmp_path / name).mkdir()
    assert next_folder("smoke", tmp_path) == tmp_path / "smoke-8"
    assert next_folder("a/b/my.toml", tmp_path) == tmp_path / "my-1"


def test_resume(runs, tmp_path):
    assert runner.invoke(app, ["run", "--resume", "old"]).exit_code == 0
    assert runs.calls == [("resume", Path("old"))]


@pytest.mark.parametrize("extra", [["smoke"], ["rounds=3", "lr=1"], ["--out", "x"], ["--overwrite"]])
def test_resume_changes_nothing(runs, capsys, extra):
    assert "--resume uses the run's own configuration" in fails(capsys, "run", "--resume", "old", *extra)
    assert runs.calls == []


@pytest.mark.parametrize("arguments", [["run", "smoke", "--out", "my run"], ["run", "--resume", "my run"]])
def test_ctrl_c_says_how_to_resume(runs, arguments):
    runs.error = KeyboardInterrupt()
    result = runner.invoke(app, arguments)
    assert result.exit_code == 130
    assert result.output.splitlines()[-1] == "stopped; resume with: fedqssl run --resume 'my run'"


def test_ctrl_c_before_anything_was_written(runs, monkeypatch):
    def start(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedqssl.runs.start", start)
    result = runner.invoke(app, ["run", "smoke", "--out", "x"])
    assert result.exit_code == 130 and "nothing has been written to x yet" in result.output


@pytest.mark.parametrize(
    "words, says",
    [
        (["smoke", "rond=3"], "did you mean 'rounds'"),
        (["smoke", "bits=four"], "1 to 16, or 32"),
        (["smok"], "did you mean 'smoke'"),
        (["smoke", "quickstart"], "give one preset or TOML file"),
        (["smoke", "beta=-1"], "beta should be greater than 0"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "config"])
def test_wrong_settings_end_in_one_line(runs, capsys, verb, words, says):
    assert says in fails(capsys, verb, *words)
    assert runs.calls == []


def test_errors_of_a_run_end_in_one_line(runs, capsys):
    runs.error = ValueError("the folder\nis taken")
    assert "the folder is taken" in fails(capsys, "run", "smoke", "--out", "x")


def test_config_prints_toml_that_runs(tmp_path):
    result = runner.invoke(app, ["config", "smoke", "rounds=5", "server.lr=0.1"])
    assert result.exit_code == 0
    path = tmp_path / "mine.toml"
    path.write_text(result.output)
    assert load_config(path) == load_config("smoke", ["rounds=5", "server.lr=0.1"])


def test_split_words():
    assert split_words([]) == ("quickstart", [])
    assert split_words(["rounds=1"]) == ("quickstart", ["rounds=1"])
    assert split_words(["a=1", "smoke", "b=2"]) == ("smoke", ["a=1", "b=2"])


@pytest.mark.parametrize("kind, name", [("presets", "quickstart"), ("models", "small_cnn"), ("objectives", "simsiam")])
def test_list(kind, name):
    result = runner.invoke(app, ["list", kind])
    assert result.exit_code == 0, result.output
    assert name in result.output
    assert all(p in result.output for p in PRESETS) or kind != "presets"


@pytest.mark.parametrize("kind", list(listing.Kind))
def test_every_registry_is_named_and_described(kind):
    module, name = listing.REGISTRIES[kind]
    found = pytest.importorskip(module)
    if not hasattr(found, name):
        pytest.skip(f"{module} has no {name} yet")
    assert all(entry.description for entry in listing.registry(kind).values())


def test_list_shows_brackets_and_any_registry(monkeypatch):
    module = ModuleType("fedqssl.data.registry")
    module.DATASETS = {"scenes": SimpleNamespace(description="embedded [bold]")}
    monkeypatch.setitem(sys.modules, "fedqssl.data.registry", module)
    result = runner.invoke(app, ["list", "datasets"])
    assert result.exit_code == 0 and "embedded [bold]" in result.output


def test_list_knows_what_it_lists():
    result = runner.invoke(app, ["list", "colours"])
    assert result.exit_code == 2 and "partitions" in result.output


def test_a_file_of_settings_comes_before_the_command_line(runs, tmp_path, capsys):
    (tmp_path / "more.toml").write_text("rounds = 7\nbits = [4, 8]\n[ssl]\ntemperature = 0.2\n")
    result = runner.invoke(app, ["run", "smoke", "lr=0.5", "rounds=3", "--set-file", "more.toml"])
    assert result.exit_code == 0, result.output
    wanted = {"rounds": 3, "bits": [4, 8], "ssl.temperature": 0.2, "lr": 0.5}
    assert runs.calls[0][1] == load_config("smoke", wanted)
    assert "note: rounds is given 2 times; 3 is used" in result.output
    assert "note: bits has 2 entries, so there are 2 clients; smoke has 4" in result.output
    assert "no such file; it is a TOML file" in fails(capsys, "run", "smoke", "--set-file", "none.toml")


def test_a_command_is_told_how_the_run_ended(runs, tmp_path, monkeypatch):
    (tmp_path / "note.sh").write_text("#!/bin/sh\necho $FEDQSSL_RUN $FEDQSSL_STATUS $1 >> told\n")
    (tmp_path / "note.sh").chmod(0o755)
    notify = ["--notify", f"{tmp_path}/note.sh phone"]
    assert runner.invoke(app, ["run", "smoke", "--out", "a", *notify]).exit_code == 0
    monkeypatch.setattr("fedqssl.runs.start", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    assert runner.invoke(app, ["run", "smoke", "--out", "b", *notify]).exit_code == 130
    monkeypatch.setattr("fedqssl.runs.start", lambda *a, **k: (_ for _ in ()).throw(ValueError("no")))
    assert runner.invoke(app, ["run", "smoke", "--out", "c", *notify]).exit_code != 0
    assert (tmp_path / "told").read_text() == "a finished phone\nb stopped phone\nc failed phone\n"


def test_notifying_never_changes_the_outcome(runs):
    found = runner.invoke(app, ["run", "smoke", "--out", "a", "--notify", "/no/such/command"])
    assert found.exit_code == 0 and "did not work" in found.output
    assert "\a" in runner.invoke(app, ["run", "smoke", "--out", "b", "--notify", "bell"]).output
