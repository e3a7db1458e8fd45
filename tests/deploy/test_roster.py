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
    for other in (f"{major}.{int(minor) + 1}.0", f"{int(major) + 1}.{minor}.0"):
        why = refusal("a", Capabilities("a", 4, 10, 2, other), None)
        line = (
            f"the client has fedqssl {other}, but the server has {__version__}; upgrade the server to fedqssl {other}"
        )
        assert why == line
    assert "upgrade the client" in refusal("a", Capabilities("a", 4, 10, 2, ""), None)


def test_who_comes_back_is_who_it_was():
    """Its bits and its number of images decide what the run's bytes are; its held-out images do not."""
    before = Capabilities("a", 4, 10, 2)
    assert refusal("a", before, before) is None and refusal("a", Capabilities("a", 4, 10, 3), before) is None
    for told in (Capabilities("a", 8, 10, 2), Capabilities("a", 4, 11, 2)):
        assert "joined this run with 4 bits, 10 images; start a new run" in refusal("a", told, before)


def test_a_name_is_that_of_its_key():
    assert refusal("a", Capabilities("b", 4, 10, 2), None) == "it reports the name 'b', but its key belongs to 'a'"


@pytest.mark.parametrize(("bits", "samples"), [(0, 10), (17, 10), (-4, 10), (4, 1), (4, 0)])
def test_bits_and_images_that_cannot_be_trained_with_are_refused(bits, samples):
    assert refusal("a", Capabilities("a", bits, samples, 2), None) is not None
