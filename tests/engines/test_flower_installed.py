"""Says why the other tests of this folder are not run, where they are not."""

import pytest

from flower_missing import MISSING


def test_flower_is_installed():
    if MISSING:
        pytest.skip(f"{MISSING[0]} is not installed, so nothing of Flower is tested: pip install 'fedqssl[flower]'")
