"""``fedqssl bench imports``: a row for each module, measured in processes of their own."""

import json

from typer.testing import CliRunner

from fedqssl.cli.main import app


def test_imports(tmp_path):
    path = tmp_path / "imports.json"
    found = CliRunner().invoke(app, ["bench", "imports", "--repeats", "1", "--json", str(path)])
    assert found.exit_code == 0, found.output
    rows = {row["variant"]: row for row in json.loads(path.read_text())["results"]}
    assert set(rows) == {"torch", "fedqssl.device", "fedqssl.runs"}
    assert all(row["seconds"] > 0 for row in rows.values()) and rows["torch"]["beside_torch"] == 0
