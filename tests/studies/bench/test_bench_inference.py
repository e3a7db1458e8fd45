"""``fedqssl bench inference`` at smoke size: every variant is there, with speed and memory."""

import json

import pytest
from typer.testing import CliRunner

from fedqssl.cli.main import app


def test_inference(tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "inference.json"
    words = [
        "bench",
        "inference",
        "--width",
        "8",
        "--images",
        "2",
        "--bits",
        "2,8",
        "--repeats",
        "1",
        "--json",
        str(path),
    ]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    record = json.loads(path.read_text())
    rows = {(row["variant"], row["bits"]): row for row in record["results"]}
    assert {("fp32", 32), ("fedqssl", 2), ("fedqssl", 8), ("onnxruntime fp32", 32)} <= set(rows)
    assert ("torch.ao int8", 8) in rows or record["skipped"]
    assert rows["fedqssl", 2]["model_bytes"] < rows["fp32", 32]["model_bytes"] / 8
    assert all(row["images_per_second"] > 0 and row["speedup"] > 0 for row in record["results"])
    assert rows["fedqssl", 8]["integer_layers"] == rows["fedqssl", 2]["integer_layers"]
    assert rows["fedqssl", 2]["integer_layers"] in (0, 20)
