"""The example scripts run, at smoke size."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"rounds": 1, "batch_size": 16, "workers": 1, "evaluation.probe_images": 50, "evaluation.knn_every": 0}
TINY = {**SMALL, "model": "small_cnn", "width": 4}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_all_are_tested():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {"own_photos", "own_backbone", "own_bits", "run_to_onnx"}


def test_own_photos(example, tmp_path, capsys):
    draws = np.random.default_rng(0)
    for name in ("leaf", "stone"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(50):
            pixels = draws.integers(0, 256, (36, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    example("own_photos").main(str(tmp_path / "photos"), str(tmp_path / "out"), **TINY)
    assert "%)" in capsys.readouterr().out and (tmp_path / "out" / "client-00.fqssl").is_file()


def test_own_backbone_then_onnx(example, tmp_path, capsys):
    small = {**SMALL, "images": 160, "clients": 2, "bits": [4, 8], "partition": "iid"}
    example("own_backbone").main(str(tmp_path / "run"), **small)
    assert "8 bits" in capsys.readouterr().out
    pytest.importorskip("onnxruntime")
    assert example("run_to_onnx").main(str(tmp_path / "run"), str(tmp_path / "x.onnx")) >= 0.9
    sys.modules.pop("own_backbone", None)


def test_own_bits(example, tmp_path, capsys):
    words = {**TINY, "images": 160, "partition": "iid"}
    example("own_bits").main(str(tmp_path), "smoke", 0.5, **words)
    out = capsys.readouterr().out
    assert "client-00" in out and "memory" in out
    if "bits=" in out.splitlines()[-2]:
        assert "global accuracy" in out
