"""Tests of Flower and of fleets are skipped where Flower is not installed; with FEDQSSL_CI=1 that is a failure."""

import os
import tempfile

import pytest

from fedqssl.engines.flower import QUIET
from flower_missing import MISSING
from flower_pictures import write_pictures

os.environ.update(QUIET)  # before anything imports flwr; and a home of its own, which goes with the tests
_HOME = tempfile.TemporaryDirectory(prefix="flwr-")
os.environ["FLWR_HOME"] = _HOME.name

if MISSING and os.environ.get("FEDQSSL_CI"):
    raise RuntimeError(f"{MISSING[0]} is missing: pip install 'fedqssl[flower]', so that Flower is tested")


def pytest_collection_modifyitems(items):
    for item in items:
        if needs_flower(item.path):
            item.add_marker(pytest.mark.flower)


def pytest_ignore_collect(collection_path):
    return True if MISSING and needs_flower(collection_path) else None


def needs_flower(path):
    """Whether a file of tests imports Flower; the one that looks for it must always run."""
    fleet = path.parent.name == "deploy" or path.name.startswith("test_flower_")
    return path.name.startswith("test_") and fleet and path.name != "test_flower_installed.py"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with ``buffer``, ``eval`` and a folder for each client."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return folder
