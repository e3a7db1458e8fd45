"""The examples in the docstrings of ``import fedqssl``, run in a working folder with a finished run."""

import doctest
from dataclasses import replace

import pytest

import fedqssl
import fedqssl.api.functions
import fedqssl.api.planning
import fedqssl.api.run
from fedqssl.config import load, presets

PARTS = [fedqssl, fedqssl.api.functions, fedqssl.api.planning, fedqssl.api.run]
EXAMPLES = [test for part in PARTS for test in doctest.DocTestFinder().find(part) if test.examples]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The preset ``smoke`` at the size of the other tests: what is tested are the examples, not the preset."""
    text = presets.PRESETS["smoke"].text
    few = {"model": "small_cnn", "width": 4, "images": 160, "batch_size": 16, "workers": 1}
    lines = [line for line in text.splitlines() if line.split(" =")[0] not in few]
    lines[:0] = [f"{key} = {value!r}".replace("'", '"') for key, value in few.items()]
    monkeypatch.setitem(load.PRESETS, "smoke", replace(presets.PRESETS["smoke"], text="\n".join(lines)))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_example(example, home, capsys):
    example.globs = {"fedqssl": fedqssl, "run": fedqssl.Run("runs/smoke-1")}
    failed, tried = doctest.DocTestRunner().run(example, clear_globs=True)
    assert tried and not failed, capsys.readouterr().out
