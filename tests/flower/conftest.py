"""Skipped where Flower is not installed; where tests are meant to be complete (FEDQSSL_CI=1) that is a failure."""

import os
import tempfile

import pytest
from flower_missing import MISSING
from flower_pictures import write_pictures

from fedqssl.engines.flower import QUIET

HERE = os.path.dirname(__file__)
os.environ.update(QUIET)  # before anything imports flwr; and a home of its own, which goes with the tests
_HOME = tempfile.TemporaryDirectory(prefix="flwr-")
os.environ["FLWR_HOME"] = _HOME.name
collect_ignore_glob = ["test_flower_[!i]*.py"] if MISSING else []

if MISSING and os.environ.get("FEDQSSL_CI"):
    raise RuntimeError(f"{MISSING[0]} is missing: pip install 'fedqssl[flower]', so that Flower is tested")


def pytest_collection_modifyitems(items):
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.flower)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with ``buffer``, ``eval`` and a folder for each client."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return folder
