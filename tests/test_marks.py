"""Every test has exactly one of the marks ``unit`` and ``integration``, and the list of places is up to date."""

import pytest

from marks import INTEGRATION, TESTS, UNIT, kind_of


def test_this_one_has_one_mark(request):
    assert [m.name for m in request.node.iter_markers() if m.name in ("unit", "integration")] == ["unit"]


def test_no_place_is_listed_twice():
    assert not set(UNIT) & set(INTEGRATION)
    assert list(UNIT) == sorted(set(UNIT)) and list(INTEGRATION) == sorted(set(INTEGRATION))


@pytest.mark.parametrize("place", [*UNIT, *INTEGRATION])
def test_places_exist(place):
    path, _, test = place.partition("::")
    assert (TESTS / path).exists()
    assert not test or f"def {test}(" in (TESTS / path).read_text()


def test_the_most_specific_place_decides():
    assert kind_of("studies/theory/test_theory_model.py", "test_x") == "unit"
    assert kind_of("studies/theory/test_theory_cli.py", "test_x") == "integration"
    assert kind_of("quant/test_kernels.py", "test_environment_variable") == "integration"
    assert kind_of("quant/test_kernels.py", "test_x") == "unit"


def test_a_new_folder_has_no_place_yet():
    assert kind_of("elsewhere/test_new.py", "test_x") is None
