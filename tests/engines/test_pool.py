"""Worker processes: results by key, errors with their traceback, workers that die, a script that is never imported again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedqssl.engines.pool import Pool

JOBS = {key: (key,) for key in ("slow", "a", "b", "c")}


def work(shared, key):
    """Done by workers, which import this module by its name."""
    if key == "slow":
        time.sleep(0.3)
    if key == "wrong":
        raise KeyError("a job's own error")
    if key == "odd":
        raise Unpicklable("one", "two")
    if key == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return shared["name"], key, os.getpid(), float(shared["images"].sum())


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.fixture(scope="module")
def shared():
    return {"name": "all", "images": torch.ones(300, 300, dtype=torch.uint8)}


@pytest.fixture
def importable(monkeypatch):
    """This module, for workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def pool(shared, importable):
    with Pool(shared, workers=2) as pool:
        yield pool


def test_results_by_key_in_the_order_of_the_jobs(shared, importable):
    ticks = []
    with Pool(shared, workers=2, tick=lambda *told: ticks.append(told)) as pool:
        found = pool.run("work", work, JOBS)
        assert list(found) == list(JOBS) and all(value[:2] == ("all", key) for key, value in found.items())
        assert all(value[3] == 90000 for value in found.values())  # images are mapped
        pids = {value[2] for value in found.values()}
        assert len(pids) == 2 and os.getpid() not in pids
        assert ticks == [("work", done, 4) for done in range(5)]
        assert {value[2] for value in pool.run("again", work, JOBS).values()} == pids  # the same workers
        assert pool.peak_memory() > 2**20
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # they end with their pool
    with Pool(shared) as alone:
        assert {value[2] for value in alone.run("work", work, JOBS).values()} == {os.getpid()}


def test_errors_of_a_job_are_raised_and_the_pool_stays_usable(pool):
    with pytest.raises(KeyError, match="a job's own error") as caught:
        pool.run("work", work, {key: (key,) for key in ("slow", "wrong", "a")})
    assert "in work" in str(caught.value.__cause__)  # the worker's traceback
    for keys in ("cb", JOBS):  # no stale result
        assert [value[1] for value in pool.run("work", work, {key: (key,) for key in keys}).values()] == list(keys)
    with pytest.raises(RuntimeError, match="Unpicklable: one and two"):
        pool.run("work", work, {"odd": ("odd",)})


def test_a_worker_that_dies(pool):
    with pytest.raises(ChildProcessError, match="a worker process died, possibly out of memory"):
        pool.run("work", work, {"deadly": ("deadly",)})
    jobs = {key: (key,) for key in ("deadly", "a", "b", "c")}
    found = dict(pool.stream(work, jobs, died=lambda key: f"{key} is lost"))
    assert found.pop("deadly") == "deadly is lost" and {value[1] for value in found.values()} == {"a", "b", "c"}
    # Perhaps no job was left when it died; these two need both places, so a dead worker that kept its place would get one.
    assert list(pool.run("work", work, {"a": ("a",), "b": ("b",)})) == ["a", "b"]


SCRIPT = """
import os, sys, time
print("imported", flush=True)
sys.path.insert(0, {folder!r})
import torch
from fedqssl.engines.pool import Pool
from test_pool import work

with Pool({{"name": "all", "images": torch.ones(300, 300, dtype=torch.uint8)}}, workers=2) as pool:
    print(sorted({{value[2] for value in pool.run("work", work, {{"a": ("a",)}}).values()}}), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_script_is_imported_once_and_workers_end_with_it(tmp_path, how):
    """Without a guard by __name__, as newcomers write scripts; however the script ends."""
    (tmp_path / "script.py").write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    started = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # even if these tests were started by nohup
    )
    assert started.stdout is not None and started.stdout.readline() == b"imported\n"
    pids = eval(started.stdout.readline())
    assert len(pids) == 1
    started.send_signal(how)
    rest = started.communicate(timeout=500)[0]
    assert b"imported" not in rest and started.returncode == -how
    end = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
