"""``fedqssl bench serve``: two real services, asked in turns."""

import json

from typer.testing import CliRunner

from fedqssl.cli.main import app
from fedqssl.studies.bench.serve import OURS, PLAIN


def test_both_services_answer_and_are_compared(device_file, tmp_path):
    path = tmp_path / "serve.json"
    found = CliRunner().invoke(app, ["bench", "serve", str(device_file), "--requests", "20", "--json", str(path)])
    assert found.exit_code == 0, found.output
    record = json.loads(path.read_text())
    rows = {row["variant"]: row for row in record["results"]}
    assert list(rows) == [OURS, PLAIN]
    assert all(0 < row["p50_ms"] <= row["p95_ms"] for row in rows.values())
    assert rows[PLAIN]["ratio"] == 1 and (rows[OURS]["bits"], rows[PLAIN]["bits"]) == (4, 32)
    assert rows[OURS]["ratio"] == rows[OURS]["p50_ms"] / rows[PLAIN]["p50_ms"]
    assert record["settings"]["requests"] == 20
