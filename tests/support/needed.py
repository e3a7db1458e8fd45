"""What some tests need of the machine; .ci/run installs it all, so there its absence is a failure."""

import os

import pytest


def unavailable(why: str) -> None:
    """Skip on a developer's machine, fail in .ci/run."""
    if os.environ.get("FEDQSSL_CI") == "1":
        pytest.fail(f"{why}, and FEDQSSL_CI=1 does not allow a skip")
    pytest.skip(why)
