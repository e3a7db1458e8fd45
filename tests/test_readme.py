"""What the README shows works: its Python is run, its commands parse (long ones at smoke size)."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedqssl.cli.main import app

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.S | re.M)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
SHELL = [
    command.strip()
    for kind, text in BLOCKS
    if not kind
    for line in text.splitlines()
    for command in line.split("#")[0].split(" ; ")
    if command.strip().startswith("fedqssl ")
]


def test_there_is_something_to_check():
    assert len(PYTHON) == 2 and len(SHELL) >= 10


@pytest.mark.parametrize("code", PYTHON, ids=["run", "lowbit"])
def test_python(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code.replace('"quickstart"', '"smoke"'), names)
    assert "run" in names or "copy" in names


@pytest.mark.parametrize("command", SHELL)
def test_commands_exist_with_these_options(command):
    words = shlex.split(command)[1:]
    depth = 2 if words[0] in ("bench", "deploy") else 1
    help_text = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200"})
    assert help_text.exit_code == 0
    for option in (w for w in words if w.startswith("--")):
        assert option in help_text.output, option


@pytest.mark.parametrize("command", ["list presets", "config quickstart", "doctor"])
def test_quick_commands_run(command):
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert result.output.strip()


def test_run_with_changed_settings(tmp_path):
    words = [
        "run",
        "smoke",
        "bits=4,4,6,8",
        "rounds=1",
        "algorithm=fed_simclr",
        "workers=1",
        "--out",
        str(tmp_path / "a"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "global accuracy" in result.output and (tmp_path / "a" / "summary.md").exists()
