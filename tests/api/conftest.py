"""A working folder with a finished run and a device file, as after a first session."""

import shutil
from pathlib import Path

import pytest

import fedqssl
from tiny_run import FOUR


@pytest.fixture(scope="session")
def first_session(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run = fedqssl.run("smoke", out=home / "runs" / "smoke-1", say=lambda line: None, **FOUR)
    run.clients["client-00"].export(home / "phone.fqssl")
    return home


@pytest.fixture
def home(first_session, tmp_path, monkeypatch) -> Path:
    """A copy to work in, which is the current folder."""
    folder = tmp_path / "home"
    shutil.copytree(first_session, folder)
    monkeypatch.chdir(folder)
    return folder
