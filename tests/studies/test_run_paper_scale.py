"""``run_paper_scale.sh`` starts, resumes and ends; ``fedqssl`` is a stand-in that prints its arguments."""

import os
import subprocess
from pathlib import Path

import fedqssl.studies.paper

SCRIPT = Path(fedqssl.studies.paper.__file__).with_name("run_paper_scale.sh")


def _run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    place = folder.parent / "bin"
    place.mkdir(exist_ok=True)
    (place / "fedqssl").write_text('#!/bin/sh\necho "$@"\n')
    (place / "fedqssl").chmod(0o755)
    env = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", str(SCRIPT), str(folder), *words], env=env, capture_output=True, text=True)


def test_it_starts_resumes_and_ends(tmp_path):
    folder = tmp_path / "run"
    started = _run(folder, "seed=1").stdout
    assert started == f"run cifar10-paper device=cuda workers_per_gpu=3 seed=1 --out {folder}\n"
    assert (
        "cifar100-paper device=cpu workers_per_gpu=1"
        in _run(folder, PRESET="cifar100-paper", DEVICE="cpu", WORKERS="1").stdout
    )
    folder.mkdir()
    (folder / "config.toml").touch()
    assert _run(folder).stdout == f"run --resume {folder}\n"
    refused = _run(folder, "seed=2")
    assert refused.returncode == 2 and "resumed with its own settings" in refused.stderr
    (folder / "result.json").touch()
    assert "is finished" in _run(folder).stdout
