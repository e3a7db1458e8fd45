"""Where runs are found, and what is not one."""

import pytest

from fedqssl.runs import RunError
from fedqssl.runs.find import find_runs, is_run


def put(path, *names):
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("")
    return path


def test_runs_at_any_depth_in_the_order_of_their_names(tmp_path):
    wanted = [
        put(tmp_path / "a" / "s1", "config.toml", "partition.json"),
        put(tmp_path / "a" / "s2", "config.toml", "result.json"),
        put(tmp_path / "b", "config.toml"),
    ]
    (tmp_path / "b" / "checkpoints").mkdir()
    put(tmp_path / "b" / "copy", "config.toml", "result.json")  # inside a run
    put(tmp_path / ".trash" / "old", "config.toml", "result.json")
    put(tmp_path / "c", "config.toml")  # other things have one, too
    assert find_runs(tmp_path) == wanted and find_runs(wanted[0]) == [wanted[0]]
    assert [is_run(path) for path in (wanted[2], tmp_path / "c", tmp_path)] == [True, False, False]


def test_what_to_do_where_there_is_none(tmp_path):
    for path, words in {"nowhere": "does not exist", "file": "it is a file", ".": "start one with fedqssl run"}.items():
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match=words):
            find_runs(tmp_path / path)
