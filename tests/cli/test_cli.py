"""The command line: help, version, doctor, benches, and errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedqssl import __version__
from fedqssl.cli.arguments import parse_bit_range
from fedqssl.cli.main import app, main

runner = CliRunner()


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_help_names_the_commands():
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "bench" in result.output and "doctor" in result.output
    result = runner.invoke(app, ["bench", "--help"])
    assert all(name in result.output for name in ("step", "memory", "codec", "views"))


def test_help_does_not_import_torch():
    code = "import sys, fedqssl.cli.main; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip() == f"fedqssl {__version__}"


def test_doctor_json():
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert {"python", "torch", "threads", "kernels", "extras", "advice", "disk_free_bytes"} <= set(facts)
    assert facts["kernels"]["backend"] in ("native", "torch")
    assert set(facts["extras"]["bench"]) == {"brevitas", "kornia"}


def test_doctor_table_and_advice(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "kernels.backend" in result.output
    assert "advice: export OMP_WAIT_POLICY=PASSIVE" in result.output


def test_bench_prints_a_table_and_writes_json(tmp_path):
    path = tmp_path / "views.json"
    result = runner.invoke(app, ["bench", "views", "--images", "4", "--repeats", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "images per s" in result.output
    assert json.loads(path.read_text())["bench"] == "views"


@pytest.mark.parametrize("bits", ["0", "17", "four", ""])
def test_bad_bits_end_in_one_line(capsys, bits):
    error = fails(capsys, "bench", "step", "--bits", bits)
    assert error.startswith("error: --bits") and error.count("\n") == 1


def test_an_impossible_json_path_ends_in_one_line(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "x.json")
    error = fails(capsys, "bench", "views", "--images", "2", "--repeats", "1", "--json", path)
    assert error.startswith("error: ") and error.count("\n") == 1


def test_debug_keeps_the_traceback(monkeypatch):
    monkeypatch.setenv("FEDQSSL_DEBUG", "1")
    with pytest.raises(ValueError, match="--bits"):
        main(["bench", "step", "--bits", "99"])


def test_unknown_option_exits_with_2(capsys):
    fails(capsys, "bench", "step", "--nope")


def test_parse_bit_range():
    assert parse_bit_range("2, 4,8") == (2, 4, 8)
