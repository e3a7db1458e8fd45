"""One thread and passive waiting, so that tests measure code and not the scheduler."""

import os
import shutil

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from needed import unavailable

pytest_plugins = ["flower_plugin", "marks"]
torch.set_num_threads(1)


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
        found = play.chromium.launch(executable_path=path, args=arguments, timeout=120_000)
        yield found
        found.close()
