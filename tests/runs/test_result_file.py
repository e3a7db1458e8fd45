"""``result.json`` of anybody's folder: the right types or one line, and the bytes that the run wrote."""

import json
import subprocess
from dataclasses import replace

import pytest

from fake_runs import fake_run, smoke
from fedqssl.cli.main import main
from fedqssl.runs import RunResult
from fedqssl.runs.checksums import write_sums
from fedqssl.runs.finalize import summary


@pytest.fixture
def run(tmp_path):
    return fake_run(tmp_path / "run", smoke()).folder


def changed(run, **values):
    path = run / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"global_accuracy": "0.5"},
        {"global_accuracy": 1e300},
        {"local_accuracy": -0.1},
        {"rounds": 1.5},
        {"bytes_up": 10**400},
        {"clients": []},
        {"clients": {"../../x": {}}},
        {"clients": {"\x1b[31m": {"bits": 4, "samples": 1, "local_accuracy": None, "bytes_up": 0, "bytes_down": 0}}},
        {"controls": {"chance": "low"}},
        {"controls": {"magic": 0.5}},
        {"protocol": {"a": 1}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_wrong_values_end_in_one_line(run, values):
    changed(run, **values)
    with pytest.raises(ValueError, match=r"result\.json is not a result") as error:
        RunResult.read(run)
    assert "\n" not in str(error.value)


def test_what_is_not_json(run):
    for text in ("[" * 100_000, "", "\x00", "NaN", "[1]"):
        (run / "result.json").write_text(text)
        with pytest.raises(ValueError, match=r"result\.json is not a result"):
            RunResult.read(run)


def test_a_result_that_was_changed_is_noticed(run, capsys):
    """By us, and by sha256sum."""
    names = ("result.json", "metrics.jsonl")
    write_sums(run, {name: (run / name).read_bytes() for name in names})
    assert RunResult.read(run).global_accuracy == 0.5
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=run).returncode == 0
    changed(run, global_accuracy=0.9)
    with pytest.raises(ValueError, match=r"result\.json was modified after the run ended"):
        RunResult.read(run)
    assert subprocess.run(["sha256sum", "-c", "--status", "SHA256SUMS"], cwd=run).returncode == 1
    (run / "SHA256SUMS").unlink()
    assert RunResult.read(run).global_accuracy == 0.9
    write_sums(run, {name: (run / name).read_bytes() for name in names})
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit):
        main(["report", str(run)])
    assert "metrics.jsonl was modified after the run ended" in capsys.readouterr().err


def test_a_run_lists_its_final_files(tmp_path):
    from fedqssl.runs import start
    from tiny_run import silent, tiny

    result = start(tiny(rounds=1, clients=2, bits=[4, 8], **{"evaluation.knn_every": 0}), tmp_path / "run", say=silent)
    listed = [line.split("  ")[1] for line in (result.folder / "SHA256SUMS").read_text().splitlines()]
    assert listed == ["clients/client-00/model.fqssl", "clients/client-01/model.fqssl", "metrics.jsonl", "result.json"]
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=result.folder).returncode == 0


def test_the_summary_of_a_fleet_names_what_its_server_can_do(run):
    """It has no client's images: probes and exports would fail."""
    result = RunResult.read(run)
    text = summary(replace(result, dataset="fleet"), [], "the server has no labeled images")
    assert "The server has no labeled images." in text and "fedqssl report " in text
    assert f"clients/{next(iter(result.clients))}/state/device.fqssl" in text and "fedqssl probe" not in text
    assert "fedqssl probe" in summary(result, [])
    for words in (text, summary(result, [])):  # three commands to try next
        assert sum(line.startswith("fedqssl ") for line in words[words.index("## Next") :].splitlines()) == 3
