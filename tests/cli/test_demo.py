"""``fedqssl demo``: everything once, in a folder of its own; what is there is kept."""

import pytest

from commands import cli
from fedqssl.cli import demo
from fedqssl.cli.main import main
from tiny_run import stopped_after

SMALL = ["clients=2", "bits=4,8", "width=4", "images=200", "batch_size=16", "workers=1", "local_steps=1"]
SMALL += ["evaluation.controls=none", "evaluation.knn_every=0", "evaluation.probe_images=60"]


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(
        "fedqssl.maker.personal.probe_controls", lambda probe, data: {}
    )  # most of the time of an export
    return tmp_path / "demo"


def test_a_demo_is_resumed_and_nothing_is_made_twice(small, capsys):
    with stopped_after(1), pytest.raises(SystemExit, match="130"):
        main(["demo", *SMALL, "--out", str(small)])
    assert "resume with" in capsys.readouterr().out
    assert "has begun" in cli(capsys, "demo", "rounds=9", "--out", small, code=2)
    said = cli(capsys, "demo", "--out", small)
    assert "where they left off" in said and "round 2/2" in said and "round 1/2" not in said
    assert "of its 10 answers are right" in said and f"fedqssl serve {small / 'phone.fqssl'}" in said
    assert (small / "run" / "report.html").is_file() and len(list((small / "pictures").iterdir())) == 10
    made = {path: path.stat().st_mtime_ns for path in small.rglob("*") if path.is_file()}
    again = cli(capsys, "demo", "--out", small)
    assert "is finished; it is kept" in again and "phone.fqssl is there; it is kept" in again
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_other_folders_are_refused(small, capsys):
    small.mkdir()
    (small / "diary.txt").write_text("mine")
    assert "exists and is not a demo" in cli(capsys, "demo", "--out", small, code=2)
    assert "is a file" in cli(capsys, "demo", "--out", small / "diary.txt", code=2)
    assert "key=value" in cli(capsys, "demo", "quickstart", "--out", small / "new", code=2)
    assert [path.name for path in small.iterdir()] == ["diary.txt"]
