"""Killed, interrupted, out of disk: a run goes on to the same bytes, leaves no process behind, and says so in one line."""

import contextlib
import errno
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.runs import RunError, RunFolder, resume, start
from fedqssl.runs.folder import Checkpoint, RunTotals
from fedqssl.runs.round import first_checkpoint, play_round
from tiny_run import TINY, figures, known_run, model_bytes, silent, tiny, tiny_context

SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE = 600
"""Seconds that something may take on a busy machine before a test gives up."""
QUICK = [("clients:1", "parent", 2), ("saving", "group", 1), ("handing out", "group", 1)]
PLACES = ["clients:0", "clients:3", "de-quantize:1", "re-quantize:1", "metrics", "renaming", "evaluation:1"]


@pytest.fixture
def finished():
    return known_run()


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.02)


def members(group: int, mapping: str = "", command: str = "") -> list[int]:
    """Processes of a group that still run, of those with this command line that have mapped a file with this name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(pgrp) != group or state == "Z":
                    continue
                if mapping in (entry / "maps").read_text() and command in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
    return found


LAUNCHED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    """Also when a test fails."""
    yield
    while LAUNCHED:
        process = LAUNCHED.pop()
        for pid in members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def launched(*words: str) -> subprocess.Popen:
    """A process in a group of its own, which heeds Ctrl-C even if these tests were started by nohup."""
    process = subprocess.Popen(
        [sys.executable, *words],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    LAUNCHED.append(process)
    return process


def as_if_never_interrupted(folder: Path, finished) -> None:
    settings = folder / "config.toml"
    if settings.exists():  # where a run goes on is the user's to choose, and workers take seconds to start
        settings.write_text(settings.read_text().replace("workers = 2", "workers = 1"))
    result = resume(folder, say=silent) if settings.exists() else start(tiny(), folder, say=silent)
    assert model_bytes(folder) == model_bytes(finished.folder)
    assert figures(result) == figures(finished)
    assert [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert not list(folder.rglob("*.partial"))


def killed_at(place: str, whom: str, folder: Path, workers: int = 2) -> None:
    process = launched(str(SUPPORT / "killed_run.py"), str(folder), place, whom, str(workers))
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL, said
    until(lambda: not members(process.pid), f"the workers end: {members(process.pid)}")


@pytest.mark.parametrize(("place", "whom", "workers"), QUICK)
def test_kill_9_in_any_phase_then_resume_gives_the_same_bytes(finished, tmp_path, place, whom, workers):
    """Of the parent alone, whose workers must then end by themselves; or of all. The slow test goes through all phases."""
    killed_at(place, whom, tmp_path / "killed", workers)
    assert not (tmp_path / "killed" / "result.json").exists()
    as_if_never_interrupted(tmp_path / "killed", finished)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["parent", "group"])
@pytest.mark.parametrize("place", PLACES)
def test_kill_9_in_every_phase(finished, tmp_path, place, whom):
    killed_at(place, whom, tmp_path / "killed")
    as_if_never_interrupted(tmp_path / "killed", finished)


def words(**changes) -> list[str]:
    settings = {**TINY, "workers": 2, **changes}
    return [f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in settings.items()]


def real_run(folder: Path) -> subprocess.Popen:
    return launched("-m", "fedqssl.cli.main", "run", "smoke", *words(), "--out", str(folder))


@pytest.mark.slow
def test_kill_9_again_and_again_at_random_moments(finished, tmp_path):
    """The real command, killed and resumed until it gets to the end; delays from a fixed seed, the last one long."""
    delays = random.Random(20).choices([2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 11.0], k=7)
    for delay in [*delays, PATIENCE]:
        folder = tmp_path / "killed"
        begun = (folder / "config.toml").exists()
        arguments = ["--resume", str(folder)] if begun else ["smoke", *words(), "--out", str(folder)]
        process = launched("-m", "fedqssl.cli.main", "run", *arguments)
        try:
            _, said = process.communicate(timeout=delay)
            assert process.returncode == 0, said
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        until(lambda group=process.pid: not members(group), "the workers end")
    assert (tmp_path / "killed" / "result.json").exists()
    as_if_never_interrupted(tmp_path / "killed", finished)


def ctrl_c_when(condition, process: subprocess.Popen, folder: Path, finished) -> None:
    """To the whole group, as a terminal does."""
    until(lambda: condition() or process.poll() is not None, "the run gets there")
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, error
    assert out.splitlines()[-1] == f"stopped; resume with: fedqssl run --resume {folder}"
    assert error == ""
    until(lambda: not members(process.pid), "the workers end")
    as_if_never_interrupted(folder, finished)


def test_ctrl_c_while_workers_start(finished, tmp_path):
    """Both import torch, which takes seconds; a KeyboardInterrupt would be noisy there."""
    folder = tmp_path / "stopped"
    process = real_run(folder)
    ctrl_c_when(lambda: len(members(process.pid, "libtorch", "engines.worker")) == 2, process, folder, finished)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["metrics.jsonl", "checkpoints/round-00001"])
def test_ctrl_c_in_the_middle(finished, tmp_path, file):
    folder = tmp_path / "stopped"
    ctrl_c_when((folder / file).exists, real_run(folder), folder, finished)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_in_one_line(finished, tmp_path):
    folder = tmp_path / "broken"
    process = real_run(folder)
    until((folder / "metrics.jsonl").exists, "the first round ends")
    os.kill(members(process.pid, command="engines.worker")[0], signal.SIGKILL)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert error.startswith("error: a worker process died") and "--resume" in error and error.count("\n") == 1
    as_if_never_interrupted(folder, finished)


class FullDisk:
    """os.fsync for which the disk is full where ``where`` is in the file's name."""

    def __init__(self, monkeypatch) -> None:
        self.where, self.real = "", os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, file) -> None:
        if self.where and self.where in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(file)


def test_a_full_disk_ends_in_one_line_and_the_last_checkpoint_survives(finished, tmp_path, monkeypatch):
    """One failure after the other, each resumed: metrics, checkpoint, a client's model, the result."""
    disk, folder = FullDisk(monkeypatch), tmp_path / "full"
    kept = lambda: sorted(p.name for p in (folder / "checkpoints").iterdir())  # noqa: E731
    go = lambda: start(tiny(), folder, say=silent) if not folder.exists() else resume(folder, say=silent)  # noqa: E731
    for where, checkpoints in [
        ("metrics.jsonl", []),
        ("round-00002.partial/aggregated", ["round-00001"]),
        ("round-00002.partial/state.json", ["round-00001"]),
        ("client-01/model.fqssl", ["round-00001", "round-00002"]),
        ("result.json", ["round-00001", "round-00002"]),
    ]:
        disk.where = where
        with pytest.raises(RunError, match="No space left") as error:
            go()
        assert "\n" not in str(error.value) and f"--resume {folder}" in str(error.value)
        assert kept() == checkpoints
    disk.where = ""
    as_if_never_interrupted(folder, finished)


def test_a_new_run_on_a_full_disk_says_so_and_can_be_started_again(tmp_path, monkeypatch):
    disk, folder = FullDisk(monkeypatch), tmp_path / "full"
    monkeypatch.setattr("fedqssl.runs.lifecycle.build_simulation", lambda config, progress: tiny_context())
    monkeypatch.setattr("fedqssl.runs.lifecycle.run_to_end", lambda context, folder, progress: "done")
    for where in ("environment.json", "config.toml"):
        disk.where = where
        with pytest.raises(RunError, match=r"cannot be written \(No space left on device\); choose another --out"):
            start(tiny(), folder, say=silent)
        assert not (folder / "config.toml").exists()
    disk.where = ""
    assert start(tiny(), folder, say=silent) == "done"  # what was left half-made is no obstacle
    with pytest.raises(RunError, match="--overwrite"):
        start(tiny(), folder, say=silent)


def checkpoint(number: int, size: int = 50_000) -> Checkpoint:
    return Checkpoint(
        number, {"a": bytes([number]) * size, "b": b"b" * size}, b"whole", RunTotals({"a": 1}, {"a": 2}, 3.5)
    )


def test_a_file_that_the_system_refuses_to_write(tmp_path):
    """A true failure of write(2), without root: a limit on the size of files."""
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    folder.save(checkpoint(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"round 2 cannot be saved.*File too large.*free some space"):
            folder.save(checkpoint(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in folder.checkpoints.iterdir()] == ["round-00001"]
    assert folder.latest() == checkpoint(1)
    folder.save(checkpoint(2))
    assert folder.latest() == checkpoint(2)


def test_two_checkpoints_are_kept_and_equal_models_are_one_file(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    for number in (1, 2, 3):
        folder.save(checkpoint(number))
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["round-00002", "round-00003"]
    same = Checkpoint(4, dict.fromkeys("abc", b"x"), None, RunTotals())
    folder.save(same)
    assert folder.latest() == same and len(list((folder.checkpoints / "round-00004").glob("model-*"))) == 1


def test_a_changed_figure_in_a_checkpoint_is_noticed(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    folder.save(checkpoint(1))
    state = folder.checkpoints / "round-00001" / "state.json"
    good = state.read_text()
    for bad in (good.replace('"rounds_done": 1', '"rounds_done": 2'), good.replace('"a": 1', '"a": 9')):
        assert bad != good
        state.write_text(bad)
        with pytest.raises(RunError, match=r"state\.json was modified; delete"):
            folder.latest()
    for bad in ("", "[]", "{}", good[:-20]):
        state.write_text(bad)
        with pytest.raises(RunError, match="cannot be read"):
            folder.latest()
    state.write_text(good)
    assert folder.latest() == checkpoint(1)


def test_only_one_process_works_on_a_run(tmp_path):
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    with (
        folder.locked(),
        pytest.raises(RunError, match="another process is working on"),
        RunFolder(folder.path).locked(),
    ):
        pass
    with folder.locked():  # and it is free again
        pass


def test_overwrite_deletes_runs_alone(tmp_path):
    """Many things have a config.toml."""
    (tmp_path / "site" / "content").mkdir(parents=True)
    (tmp_path / "site" / "config.toml").write_text("title = 'mine'")
    with pytest.raises(RunError, match="is not a run"):
        RunFolder.create(tmp_path / "site", overwrite=True)
    assert (tmp_path / "site" / "content").exists()


def live_bytes() -> int:
    gc.collect()
    seen = {}
    for t in (found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)):
        with contextlib.suppress(RuntimeError):  # what another test's tracing left behind holds no bytes
            seen[t.data_ptr()] = t.numel() * t.element_size()
    return sum(seen.values())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_rounds():
    """From round 3 to round 8: live tensors by at most 64 KiB, resident memory by at most 16 MiB (allocator noise)."""
    context = tiny_context(images=80, **{"evaluation.knn_every": 4})
    now, tensors, pages = first_checkpoint(context), [], []
    with Pool(context) as pool:
        for number in range(8):
            now, _ = play_round(context, InProcess(pool), pool, now, number % 2)
            tensors.append(live_bytes())
            pages.append(resident())
    assert tensors[7] - tensors[2] <= 2**16, tensors
    assert pages[7] - pages[2] <= 2**24, pages
