"""Without the extra ``flower`` everything else works, and what needs it says so in one line."""

import subprocess
import sys

import pytest

BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['flwr', 'ray', 'cryptography'])); "


def python(code: str, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", BLOCKED + code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "words",
    [["run", "smoke", "--engine", "flower-sim"], ["deploy", "init", "fleet"], ["deploy", "client", "f", "--name", "a"]],
)
def test_the_error_names_the_extra(tmp_path, words):
    more = ["--out", str(tmp_path / "run")] if words[0] == "run" else []
    found = python("from fedqssl.cli.main import main; main(sys.argv[1:])", *words, *more)
    assert found.returncode == 2, found.stderr
    assert found.stderr == "error: this needs flwr: pip install 'fedqssl[flower]'\n"
    assert not (tmp_path / "run").exists()


def test_the_core_imports(tmp_path):
    names = ["runs", "engines.flower", "cli.deploy", "report", "device", "studies.bench.engine"]
    code = "; ".join(f"import fedqssl.{name}" for name in names)
    found = python(code)
    assert found.returncode == 0, found.stderr
