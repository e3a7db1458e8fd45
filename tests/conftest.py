"""One thread and passive waiting, so that tests measure code and not the scheduler; every test starts from the same state."""

import os
import random
import shutil

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton's first import: its kernels then run on CPU tensors

import hypothesis
import numpy as np
import pytest
import torch

from needed import unavailable

pytest_plugins = ["flower_plugin", "device_plugin", "marks", "savings"]
hypothesis.settings.register_profile("same examples every time", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same examples every time")


def _same_start() -> None:
    """Global generators and the number of threads, whatever ran before in this process, and in whatever order."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call():
    _same_start()  # not in pytest_runtest_call, where pytest-randomly sets seeds of its own


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup():
    _same_start()
    return (yield)


@pytest.fixture(autouse=True)
def same_surroundings():
    """The environment and the current folder are put back: some commands of ours set variables for their process."""
    variables, folder = dict(os.environ), os.getcwd()
    yield
    os.chdir(folder)
    for name in os.environ.keys() - variables.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if name != "PYTEST_CURRENT_TEST"})


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; closed after each module, because Playwright keeps an event loop running meanwhile."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        unavailable("no chromium on this machine (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("no playwright (pip install 'fedqssl[dev]')")
    with sync_playwright() as play:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = play.chromium.launch(executable_path=path, args=arguments, timeout=600_000)
        yield found
        found.close()
