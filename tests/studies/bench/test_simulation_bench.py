"""The side-by-side benchmark: its workload, what it measures of a process tree, and peers that are not there."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedqssl.studies.bench import simulation
from fedqssl.studies.bench.simulation import Candidate, Figures, _rows, run
from fedqssl.studies.bench.throughput import workload


@pytest.fixture
def few(tmp_path):
    """Two users' images."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        images, labels = rng.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 100)
        np.savez(tmp_path / f"{split}.npz", images=images, labels=labels)
    return f"arrays:{tmp_path}"


def test_the_network_is_pfl_researchs():
    assert sum(p.numel() for p in workload.simple_cnn().parameters()) == 1_626_442


def test_a_bare_loop_and_our_rounds_are_measured(few):
    said = []
    record = run(iterations=1, processes=(1,), data=few, only=("bare", "fedqssl"), say=said.append)
    assert not record.skipped and [row["candidate"] for row in record.results] == ["bare", "fedqssl"]
    assert record.settings["cohort"] == record.settings["users"] == 2 and len(said) == 2
    for row in record.results:
        assert row["updates_per_second"] > 0 and row["cpu_ms_per_update"] > 0
    assert record.results[0]["cpu_ms_beyond_bare"] == 0


def test_a_peer_that_is_not_there_is_skipped_by_name(few, tmp_path, monkeypatch):
    record = run(iterations=1, processes=(), data=few, say=str)
    assert [s.variant for s in record.skipped] == ["pfl"] and "--pfl DIR" in record.skipped[0].reason
    place = tmp_path / "env"
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)  # an environment without pfl
    python, why = simulation._pfl_python(place)
    assert python is None and "cannot be installed" in why and "pfl" in why


def test_a_process_that_fails_is_skipped_with_its_last_line(few, monkeypatch):
    monkeypatch.setattr(simulation, "_candidates", lambda *given: ([Candidate("broken", "nothing_of_the_kind", 1)], []))
    record = run(iterations=1, processes=(1,), data=few, say=str)
    assert not record.results and record.skipped[0].variant == "broken"
    assert "nothing_of_the_kind" in record.skipped[0].reason


def test_rows_by_hand():
    bare, ours = Candidate("bare", "bare", 2), Candidate("fedqssl", "ours", 2)
    found = {bare: [Figures(100, 5.0, 8.0, 3)], ours: [Figures(100, 4.0, 12.0, 9), Figures(100, 2.0, 10.0, 7)]}
    first, second = _rows(found)
    assert first["cpu_ms_per_update"] == 80 and first["updates_per_second"] == 20
    assert second["updates_per_second"] == 37.5 and second["cpu_ms_beyond_bare"] == 30 and second["peak_bytes"] == 9


def test_memory_and_time_of_this_very_process():
    me = int(Path("/proc/self").resolve().name)
    assert me in simulation._tree(me) and simulation._cpu(me) > 0 and simulation._pss(me) > 1 << 20
