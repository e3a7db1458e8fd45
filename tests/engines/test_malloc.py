"""Freed memory stays with the process."""

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, numpy
from fedqssl.engines.malloc import keep_freed_memory
asked = keep_freed_memory() if sys.argv[1] == "keep" else False
def use():
    for _ in range(10):
        numpy.ones(16 * 2**20, numpy.float32)  # 64 MiB, past the largest threshold that glibc sets itself
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(asked, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **variables: str) -> tuple[str, int]:
    """Whether glibc was asked, and the page faults of ten large tensors after ten like them."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, how],
        env={**clean, "NUMPY_MADVISE_HUGEPAGE": "0", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    asked, count = done.stdout.split()
    return asked, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_large_tensors_reuse_their_pages():
    asked, kept = faults("keep")
    _, fetched = faults("leave")
    assert asked == "True"
    assert kept * 10 < fetched


def test_the_users_own_settings_stand():
    assert faults("keep", MALLOC_TOP_PAD_="1000000")[0] == "False"
