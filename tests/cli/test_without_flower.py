"""Without the extra ``flower`` everything else works, and what needs it says so in one line."""

import json
import subprocess
import sys

import pytest

COMMANDS = {
    "run": ["run", "smoke", "--engine", "flower-sim", "--out", "run"],
    "init": ["deploy", "init", "fleet"],
    "client": ["deploy", "client", "f", "--name", "a"],
}
CODE = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(["flwr", "ray", "cryptography"]))
import fedqssl.runs, fedqssl.engines.flower, fedqssl.cli.deploy, fedqssl.reporting, fedqssl.device, fedqssl.studies.bench.engine
from fedqssl.cli.main import main

def ended(words):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main(words)
        except SystemExit as end:
            return end.code, said.getvalue()
    return 0, said.getvalue()

print(json.dumps({name: ended(words) for name, words in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("without")


@pytest.fixture(scope="module")
def without_flower(folder):
    """How each command ends in one process that has everything else."""
    command = [sys.executable, "-c", CODE, json.dumps(COMMANDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr  # the core can be imported
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_error_names_the_extra(without_flower, folder, name):
    assert without_flower[name] == [2, "error: this needs flwr: pip install 'fedqssl[flower]'\n"]
    assert not list(folder.iterdir())
