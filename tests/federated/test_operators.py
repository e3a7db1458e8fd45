"""The server's operators do their jobs with the round's own number and the server's own learning rate."""

import dataclasses

import pytest
import torch

from fedqssl.engines.pool import Pool
from fedqssl.federated.server import dequantize, requantize
from fedqssl.federated.server.operators import ServerOperators, requantize_as_configured
from fedqssl.federated.state import read_payload
from fedqssl.runs.round import first_checkpoint
from tiny_run import tiny_context

ROUND, LR, SERVER_LR = 3, 0.3, 0.05


@pytest.fixture(scope="module")
def context():
    return tiny_context(images=80, **{"server.dequantize_epochs": 1, "server.requantize_epochs": 1})


@pytest.fixture(scope="module")
def start(context):
    return first_checkpoint(context)


@pytest.fixture(scope="module")
def operators(context, start):
    return ServerOperators(context, Pool(context), ROUND, LR, SERVER_LR, start.aggregated)


def test_dequantized_by_client(context, start, operators):
    found = operators.dequantize(start.payloads)
    for name, bits in context.bits.items():
        state, loss = dequantize(start.payloads[name], bits, context.buffer(), context.task, ROUND, 1, SERVER_LR)
        assert found[name][1] == loss and all(torch.equal(found[name][0][key], x) for key, x in state.items())


def test_an_upload_that_was_read_when_it_was_checked_is_not_read_again(context, start, operators):
    first, second = sorted(start.payloads)[:2]
    payloads = {n: start.payloads[n] for n in (first, second)}
    mark = {"mark": torch.zeros(1)}
    known = {
        first: (payloads[first], mark),
        second: (bytes(bytearray(payloads[second])), mark),
    }  # equal, but not the same
    found = dataclasses.replace(operators, known=known).read(payloads)
    assert found[first] is mark
    want = read_payload(payloads[second], context.bits[second], context.task)
    assert all(torch.equal(found[second][key], x) for key, x in want.items())


def test_requantized_once_per_bitwidth_for_every_client(context, operators):
    state = operators.before()
    found = operators.requantize(state)
    for name, bits in context.bits.items():
        assert found[name] == requantize(state, bits, context.buffer(), context.task, ROUND, 1, SERVER_LR)
    rounded = operators.round_to_bits(state)
    assert rounded["client-00"] != found["client-00"]
    assert rounded["client-00"] == requantize(state, 4, context.buffer(), context.task, ROUND, 0, SERVER_LR)


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ({}, ("average", "grow")),
        ({"server.requantize_start": "codes"}, ("codes", "grow")),
        ({"lowbit.scale": "round"}, ("average", "round")),
        ({"lowbit.scale": "max"}, ("average", "round")),  # as before: float copies need no such scale
    ],
)
def test_requantization_is_as_configured(words, how):
    context = tiny_context(images=80, **words)
    state = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    made = requantize_as_configured(context, 4, state, ROUND, SERVER_LR, 1)
    assert made == requantize(state, 4, context.buffer(), context.task, ROUND, 1, SERVER_LR, *how)


def test_training_on_the_buffer_is_at_the_servers_rate_and_everywhere_at_the_clients(context, operators, monkeypatch):
    asked = []

    def noted(state, images, task, purpose, steps, lr, done, loss):
        asked.append((len(images), purpose, steps, lr))
        return state, 0.0

    monkeypatch.setattr("fedqssl.federated.server.operators.fine_tune", noted)
    operators.train({}, "buffer", 2)
    operators.train({}, "everywhere", 2)
    operators.train({}, "everywhere", steps=5)
    everyone = sum(context.sizes.values())
    assert context.task.steps(everyone) > 1
    assert asked == [
        (len(context.buffer()), ("buffer", ROUND), 2 * context.task.steps(len(context.buffer())), SERVER_LR),
        (everyone, ("everywhere", ROUND), 2 * context.task.steps(everyone), LR),
        (everyone, ("everywhere", ROUND), 5, LR),
    ]


@pytest.mark.parametrize(("setting", "inside"), [(None, 1), (2, 2)])
def test_the_servers_threads_are_used_while_it_trains_one_model(setting, inside, monkeypatch):
    seen = []

    def fake(*arguments):
        seen.append(torch.get_num_threads())
        raise ValueError("stopped")

    monkeypatch.setattr("fedqssl.federated.server.operators.fine_tune", fake)
    context = tiny_context(images=80, **{"server.threads": setting})
    with Pool(context) as pool:
        operators = ServerOperators(context, pool, ROUND, LR, SERVER_LR, None)
        with pytest.raises(ValueError, match="stopped"):
            operators.train({}, "buffer", steps=1)
        assert (seen, torch.get_num_threads()) == ([inside], 1)


@pytest.mark.parametrize(
    ("settings", "models", "in_all", "each"),
    [
        ({"server.dequantize_epochs": 3}, 3, 3 * 2 * 3, 3 * 2),  # epochs of two steps
        ({"server.dequantize_epochs": 0}, 3, 0, 0),
        ({"server.steps": 11}, 3, 11, 3),
        ({"server.steps": 11}, 1, 11, 11),
        ({"server.steps": 2}, 3, 2, 1),
    ],
)
def test_the_servers_steps_are_shared_by_the_received_models(settings, models, in_all, each, monkeypatch):
    context, asked = tiny_context(images=400, **settings), []
    assert context.task.steps(len(context.buffer())) == 2
    start = first_checkpoint(context)
    operators = ServerOperators(context, Pool(context), ROUND, LR, SERVER_LR, start.aggregated)
    monkeypatch.setattr(
        "fedqssl.federated.server.operators.dequantize", lambda *given: asked.append(given[5]) or ({}, 0.0)
    )
    assert operators.server_steps(models) == in_all
    assert len(operators.dequantize(dict(list(start.payloads.items())[:models]))) == models
    assert asked == [each] * models


def test_there_is_no_model_before_the_first_aggregate(context):
    with pytest.raises(ValueError, match="no aggregated model"):
        ServerOperators(context, Pool(context), 0, LR, SERVER_LR, None).before()


def test_states_are_read_in_each_clients_bits(context, start, operators):
    found = operators.read(start.payloads)
    for name, bits in context.bits.items():
        want = read_payload(start.payloads[name], bits, context.task)
        assert found[name].keys() == want.keys() and all(bool((found[name][k] == want[k]).all()) for k in want)
