"""The template of docs/add-an-algorithm.md is a real algorithm: registered as it stands there, it runs and keeps its promises."""

import re
from pathlib import Path

import torch

from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.state import read_payload
from tiny_run import rounds_of, tiny_context

PAGE = Path(__file__).parents[2] / "docs" / "add-an-algorithm.md"


def test_the_documented_template_runs_as_it_stands(monkeypatch):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 30
    module = {}
    exec(compile(source, str(PAGE), "exec"), module)
    monkeypatch.setitem(ALGORITHMS, "fed_median", module["FED_MEDIAN"])
    context = tiny_context(algorithm="fed_median", bits=[32, 32, 32])
    received = {}
    check = module["FED_MEDIAN"].check

    def note(payload, bits, task):
        received[len(received)] = read_payload(payload, bits, task)
        check(payload, bits, task)

    object.__setattr__(module["FED_MEDIAN"], "check", note)
    after, (line,) = rounds_of(context)
    assert abs(sum(line["weights"].values()) - 1) < 1e-9
    state = read_payload(after.aggregated, 32, context.task)
    name = next(key for key in state if key.endswith("weight") and state[key].ndim == 4)
    want = torch.stack([received[i][name] for i in range(3)]).median(0).values
    assert torch.equal(state[name], want)
