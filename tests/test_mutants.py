"""The list of deliberate slips (``make mutants``) fits the code as it is; whether they are noticed takes minutes."""

import re

import pytest

from run_mutants import ROOT, Slip, read_slips

SLIPS = read_slips()
PACKAGES = {"quant", "lowbit", "federated", "evaluation", "runs", "engines", "deploy", "cost", "device"}


def test_there_are_enough_of_them_everywhere():
    assert len(SLIPS) >= 40 and {slip.file.split("/")[0] for slip in SLIPS} >= PACKAGES
    assert len({slip.slip for slip in SLIPS}) == len(SLIPS)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.slip)
def test_text_and_tests_are_there(slip):
    slip.made_in((ROOT / slip.path).read_text(encoding="utf-8"))
    assert slip.tests
    for test in slip.tests:
        path, _, name = test.partition("::")
        assert (ROOT / "tests" / path).is_file(), test
        assert not name or re.search(rf"^def {re.escape(name.partition('[')[0])}\(", read(path), re.MULTILINE), test


def read(test_file: str) -> str:
    return (ROOT / "tests" / test_file).read_text(encoding="utf-8")


def test_a_list_that_is_out_of_date_is_noticed():
    slip = Slip("x", "files.py", "one", "two", ("test_files.py",))
    assert slip.made_in("this one") == "this two"
    for code in ("", "one and one"):
        with pytest.raises(ValueError, match="times in src/fedqssl/files"):
            slip.made_in(code)
    with pytest.raises(ValueError, match="becomes itself"):
        Slip("x", "files.py", "one", "one", ()).made_in("one")
