"""A round asks for what the schedule and the settings say, and its checkpoint holds what it gave."""

import dataclasses
import math

import pytest

from fedqssl.engines.in_process import InProcess
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.state import read_payload
from fedqssl.runs.round import learning_rate, server_learning_rate
from tiny_run import rounds_of, tiny, tiny_context

HALF_COSINE = [0.5 * (1 + math.cos(math.pi * number / 4)) for number in range(4)]


@pytest.mark.parametrize(
    ("schedule", "rounds", "shares"),
    [
        ("constant", 3, [1, 1, 1]),
        ("cosine", 4, HALF_COSINE),
        ("step", 10, [1, 1, 1, 0.3, 0.3, 0.3, 0.09, 0.09, 0.09, 0.027]),
    ],
)
def test_schedules_by_hand(schedule, rounds, shares):
    config = tiny(lr=0.2, lr_schedule=schedule, rounds=rounds)
    assert [learning_rate(config, number) for number in range(rounds)] == pytest.approx([0.2 * s for s in shares])
    assert [server_learning_rate(config, n) for n in range(rounds)] == [learning_rate(config, n) for n in range(rounds)]
    assert server_learning_rate(tiny(**{"server.lr": 0.07}), 1) == 0.07


def test_clients_and_server_train_at_the_rounds_own_rate():
    """The first round is at the full rate, and the second one step further: jobs, operators and metrics agree."""
    asked, operated = [], []

    class Noted(InProcess):
        def train_clients(self, payloads, job):
            asked.append((job.round_number, job.lr))
            return super().train_clients(payloads, job)

    def operators(context, jobs, round_number, lr, server_lr, *rest):
        operated.append((round_number, lr, server_lr))
        return ServerOperators(context, jobs, round_number, lr, server_lr, *rest)

    context = tiny_context(algorithm="fed_simclr", images=80, lr=0.2, lr_schedule="cosine", rounds=4)
    _, lines = rounds_of(context, 2, engine_type=Noted, operators=operators)
    rates = [0.2 * share for share in HALF_COSINE[:2]]
    assert asked == [(0, pytest.approx(rates[0])), (1, pytest.approx(rates[1]))]
    assert operated == [(number, lr, lr) for number, lr in asked]
    assert [(line["round"], line["lr"]) for line in lines] == [(1, rates[0]), (2, rates[1])]


def test_a_checkpoint_holds_the_aggregate_of_its_own_round():
    """At 32 bits everyone is handed the aggregate, so one can tell which one was kept and which one is served."""
    context = tiny_context(algorithm="fed_simclr", images=80, bits=32)
    first, _ = rounds_of(context, 1)
    second, _ = rounds_of(context, 2)
    assert [first.rounds_done, second.rounds_done] == [1, 2] and first.aggregated != second.aggregated
    for checkpoint in (first, second):
        assert {*checkpoint.payloads.values()} == {checkpoint.aggregated}


def test_the_server_goes_on_from_the_aggregate_of_the_round_before():
    """What an algorithm's server part finds as ``before()``."""
    seen = []

    def operators(*given):
        operators = ServerOperators(*given)
        seen.append(operators.aggregated)
        return operators

    context = tiny_context(algorithm="fed_paq", images=80)
    first, _ = rounds_of(context, 1)
    rounds_of(context, 2, operators=operators)
    assert seen[1] == first.aggregated != seen[0]
    assert read_payload(seen[0], 32, context.task).keys() == read_payload(seen[1], 32, context.task).keys()


def test_what_is_monitored_is_the_aggregate_of_the_round(monkeypatch):
    watched = []
    monkeypatch.setattr("fedqssl.runs.round.knn_monitor", lambda context, model: watched.append(model))
    context = tiny_context(algorithm="fed_simclr", images=80, **{"evaluation.knn_every": 1})
    after, lines = rounds_of(context, 1)
    state, want = dict(watched[0].named_parameters()), read_payload(after.aggregated, 32, context.task)
    assert state and all((state[n] - want[n].view_as(state[n])).abs().max() < 1e-3 for n in state)
    assert lines[0]["collapse"]["dim"] > 0


def test_the_server_remembers_from_round_to_round(monkeypatch):
    """Its state goes into the round after the one that it came out of."""
    seen = []

    def counting(state, arrived, operators):
        seen.append(dict(state))
        return {"rounds": state["rounds"] + 1}, fed_simclr.server({}, arrived, operators)[1]

    fed_simclr = ALGORITHMS["fed_simclr"]
    changed = dataclasses.replace(fed_simclr, server=counting, init=lambda initial: {"rounds": 5})
    monkeypatch.setitem(ALGORITHMS, "fed_simclr", changed)
    after, _ = rounds_of(tiny_context(algorithm="fed_simclr", images=80), 2)
    assert seen == [{"rounds": 5}, {"rounds": 6}] and after.server_state == {"rounds": 7}
