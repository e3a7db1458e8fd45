"""A run folder that was damaged, or made by somebody else, ends in one line or in a result: never in a traceback.

What follows the reading of the files (training, fitting a classifier, the ledger's network) is left out here.
"""

import collections
import contextlib
import io
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest

from fedqssl.cli.main import main
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.runs import start
from fedqssl.runs.result import RunResult
from mutated_folders import mutated
from tiny_run import silent, tiny

Image = pytest.importorskip("PIL.Image")
FILES = (".json", ".jsonl", ".toml", ".fqssl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of seconds on a few pictures."""
    home, noise = tmp_path_factory.mktemp("finished"), np.random.default_rng(0)
    for i in range(60):
        path = home / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    words = {"data": f"folder:{home / 'photos'}", "images": None, "image_size": 16, "clients": 2, "bits": [4, 32]}
    config = tiny(**words, rounds=1, batch_size=8, **{"evaluation.knn_every": 1, "evaluation.classifier": "sgd"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedqssl.runs.finalize.draw", lambda context, folder: [])
        return start(config, home / "run", say=silent).folder


@pytest.fixture(scope="module")
def unfinished(finished, tmp_path_factory) -> Path:
    """All rounds are done, the evaluation is not."""
    path = tmp_path_factory.mktemp("unfinished") / "run"
    shutil.copytree(finished, path, ignore=shutil.ignore_patterns("result.json", "clients", "SHA256SUMS"))
    return path


@pytest.fixture(scope="module")
def result(finished) -> RunResult:
    return RunResult.read(finished)


@pytest.fixture(autouse=True)
def only_reading(monkeypatch, result):
    """Everything that reads a run's files, and nothing that takes seconds."""

    def play(context, checkpoint, equipment):
        equipment.folder.cut_metrics(checkpoint.rounds_done)
        equipment.folder.lines()
        return result

    def read(run: FinishedRun, name: str, *rest) -> bytes:
        run.own(run.client(name)), run.extractor(name)
        raise ValueError("read")

    monkeypatch.setattr("fedqssl.runs.lifecycle.play_to_end", play)
    # Where it is called, not where it is defined: a module that is first imported now would keep the stand-in for good.
    monkeypatch.setattr("fedqssl.maker.exporting.device_bytes", read)
    monkeypatch.setattr("fedqssl.maker.probing.probe_client", read)
    monkeypatch.setattr("fedqssl.reporting.page.costs", lambda run: "not here")
    monkeypatch.delenv("FEDQSSL_DEBUG", raising=False)


def outcome(words: list[str]) -> str:
    """``""`` for a command that ended in order; else the traceback, or what else was wrong."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as ended:
            if ended.code not in (None, 0, 2):
                return f"exit code {ended.code}"
        except BaseException:
            return traceback.format_exc()
    if "\x1b" in said.getvalue() or "\x07" in said.getvalue():
        return f"control characters reach the terminal: {said.getvalue()[-300:]!r}"
    return ""


def commands(changed: Path, run: Path, number: int) -> list[list[str]]:
    """What a user would do with a finished run that reads the changed file."""
    name, folder = changed.relative_to(run).as_posix(), str(run)
    export = ["export", folder, "--client", "client-00", "--out", str(run.parent / "device.fqssl")]
    probe, resume = ["probe", folder, "--client", "client-01"], ["run", "--resume", folder]
    if name.startswith("clients/"):
        return [export if "client-00" in name else probe]
    found = [["report", folder]]
    if name in ("config.toml", "environment.json", "result.json"):
        found.append(["compare", folder])
    if name in ("config.toml", "result.json", "partition.json"):
        found.append((export, probe, resume)[number % 3])
    return found


def failures(finished: Path, unfinished: Path, tmp_path: Path, numbers: range) -> list[str]:
    """What went wrong with each mutated file."""
    found, run = [], tmp_path / "run"
    for number in numbers:
        if number % 4 == 0:
            changed = mutated(unfinished, run, number, FILES)
            tried = [["run", "--resume", str(run)], ["report", str(run)]]
        else:
            changed = mutated(finished, run, number, FILES)
            tried = commands(changed, run, number)
        for words in tried:
            wrong = outcome(words)
            if wrong:
                found.append(f"{number}: {changed.relative_to(run)}: {words[0]}: {wrong}")
    return found


def test_some_mutated_files(finished, unfinished, tmp_path):
    assert failures(finished, unfinished, tmp_path, range(60)) == []


@pytest.mark.slow
def test_2000_mutated_files(finished, unfinished, tmp_path, capsys):
    """The figure of issue 17: no traceback."""
    found = failures(finished, unfinished, tmp_path, range(2000))
    last = collections.Counter(line.strip().splitlines()[-1][:100] for line in found)
    with capsys.disabled():
        print(f"\ntracebacks of 2,000 mutated files: {len(found)}", *last.most_common(), sep="\n")
    assert found == []
