"""Early stops and more rounds: what is kept, what is noted, and what is refused."""

import json

import pytest

from commands import cli
from fedqssl.config import load_run_config
from fedqssl.runs import Progress, RunError, extend, resume, start
from fedqssl.runs.folder import RunFolder
from tiny_run import tiny


class Stop(Progress):
    """Goes on until a round."""

    def __init__(self, after: int) -> None:
        self.lines: list[str] = []
        super().__init__(self.lines.append)
        self.after, self.seen = after, []

    def go_on(self, line) -> bool:
        self.seen.append(line["round"])
        return line["round"] < self.after


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds without a schedule."""
    return start(tiny(rounds=3), tmp_path_factory.mktemp("three") / "run", say=lambda line: None)


def payloads(folder):
    found = RunFolder(folder).latest()
    return found.rounds_done, found.payloads


def test_a_stopped_run_keeps_and_evaluates_what_is_there(tmp_path, finished):
    progress = Stop(after=2)
    result = start(tiny(rounds=3), tmp_path / "run", progress=progress)
    assert progress.seen == [1, 2] and "stopped after round 2 of 3, as asked" in progress.lines
    assert result.rounds == 2 and result.global_accuracy is not None
    assert result.protocol == f"{finished.protocol}-stopped-2"
    assert result.steps < finished.steps and len(RunFolder(result.folder).lines()) == 2
    assert resume(result.folder, say=lambda line: None) == result


def test_a_stopped_run_that_goes_on_is_the_run_without_a_stop(tmp_path, finished):
    stopped = start(tiny(rounds=3), tmp_path / "run", progress=Stop(after=1))
    result = extend(stopped.folder, 3, say=lambda line: None)
    assert payloads(result.folder) == payloads(finished.folder)
    assert (result.rounds, result.protocol, result.global_accuracy) == (
        *(3, finished.protocol),
        finished.global_accuracy,
    )
    assert json.loads((result.folder / "result-after-1.json").read_text())["rounds"] == 1


def test_asking_to_stop_in_the_last_round_changes_nothing(tmp_path, finished):
    progress = Stop(after=3)
    result = start(tiny(rounds=3), tmp_path / "run", progress=progress)
    assert result.protocol == finished.protocol and not any("as asked" in line for line in progress.lines)


def test_more_rounds_of_a_finished_run_are_noted(tmp_path, capsys, finished):
    short = start(tiny(rounds=2), tmp_path / "run", say=lambda line: None)
    before = short.folder.joinpath("result.json").read_text()
    cli(capsys, "run", "--resume", short.folder, "rounds=3")
    assert payloads(short.folder) == payloads(finished.folder)  # the rate is constant, so nothing differs
    assert load_run_config(short.folder).rounds == 3
    assert (short.folder / "result-after-2.json").read_text() == before
    environment = json.loads((short.folder / "environment.json").read_text())
    assert environment["history"] == [{"after": 2, "rounds": [2, 3]}]
    assert "extended from 2 to 3 rounds after round 2" in (short.folder / "log.txt").read_text()
    assert cli(capsys, "report", short.folder).startswith("wrote ")


def test_an_extension_that_was_killed_resumes(tmp_path, finished, monkeypatch):
    short = start(tiny(rounds=2), tmp_path / "run", say=lambda line: None)

    def killed(self, name, text):
        if name == "config.toml":
            raise KeyboardInterrupt
        real(self, name, text)

    real = RunFolder.write
    monkeypatch.setattr(RunFolder, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        extend(short.folder, 3, say=lambda line: None)
    monkeypatch.undo()
    assert resume(short.folder, say=lambda line: None).rounds == 2  # the plan was not written: as before
    assert extend(short.folder, 3, say=lambda line: None).rounds == 3
    assert payloads(short.folder) == payloads(finished.folder)


def test_refusals(tmp_path, capsys, finished):
    with pytest.raises(RunError, match=r"has 3 rounds already; ask for more than that, like rounds=4"):
        extend(finished.folder, 3)
    for words in (["rounds=4", "lr=1"], ["quickstart"], ["rounds=many"]):
        found = cli(capsys, "run", "--resume", finished.folder, *words, code=2)
        assert "the only setting that it takes is more rounds, like rounds=20" in found
    with pytest.raises(RunError, match="is not a run"):
        extend(tmp_path, 3)
