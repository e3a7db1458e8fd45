"""Whom the server lets take part, by what they tell."""

import pytest

from fedqssl import __version__
from fedqssl.deploy.roster import MAX_IMAGES, refusal
from fedqssl.engines.flower.wire import Capabilities


@pytest.mark.parametrize(("samples", "tested"), [(10, -1), (10**14, 2), (10, 10**14), (10**4299, 2)])
def test_numbers_of_images_that_cannot_be_are_refused(samples, tested):
    """One client's false number would end the run of all."""
    why = refusal("a", Capabilities("a", 4, samples, tested), None)
    assert f"0 to {MAX_IMAGES} images are possible" in why and len(why) <= 300


def test_honest_numbers_are_taken():
    assert refusal("a", Capabilities("a", 4, MAX_IMAGES, 0), None) is None


def test_another_version_is_refused():
    """The guide asks for the same version everywhere; a release that only mends something is the same."""
    major, minor, *_ = __version__.split(".")
    assert refusal("a", Capabilities("a", 4, 10, 2, f"{major}.{minor}.99"), None) is None
    for other in (f"{major}.{int(minor) + 1}.0", f"{int(major) + 1}.{minor}.0", ""):
        why = refusal("a", Capabilities("a", 4, 10, 2, other), None)
        assert f"it has fedqssl {other}, but the server has {__version__}" in why
