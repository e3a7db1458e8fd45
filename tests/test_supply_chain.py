"""What CI installs is listed by hash, and says what it is."""

import re
from pathlib import Path

from lock_without_torch import without_torch

ROOT = Path(__file__).parents[1]


def test_every_entry_of_the_lock_has_hashes():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[a-z])", text.split("make lock\n")[1].strip())
    assert len(entries) > 80 and all("--hash=sha256:" in entry for entry in entries)
    names = {entry.split("==")[0] for entry in entries}
    assert {"numpy", "flwr", "fastapi", "uvicorn", "pytest", "safetensors"} <= names and "torch" not in names
    for line in (ROOT / "constraints.txt").read_text().split():
        assert line.startswith("torch==") or f"{line} " in text


def test_a_lock_without_torch():
    text = (
        "numpy==1 \\\n    --hash=sha256:a\ntorch==2 \\\n    --hash=sha256:b\ntorchmetrics==1 \\\n    --hash=sha256:c\n"
    )
    found = without_torch(text)
    assert "numpy==1" in found and "torchmetrics==1" in found and "torch==2" not in found and "sha256:b" not in found


def test_ci_uses_the_lock_and_releases_list_their_parts():
    assert "LOCK: requirements.lock" in (ROOT / ".github/workflows/tests.yml").read_text()
    assert "cyclonedx-py" in (ROOT / ".github/workflows/wheels.yml").read_text()
    assert "report" in (ROOT / "SECURITY.md").read_text().lower()
