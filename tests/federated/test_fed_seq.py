"""Fed-Seq: clients take turns, and what they change is added to the server's own model."""

import pytest
import torch

from fedqssl.engines.in_process import InProcess
from fedqssl.federated.finish import full_precision
from fedqssl.federated.server.aggregate import with_updates
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.state import read_payload, read_state, write_state
from fedqssl.lowbit import to_bytes
from fedqssl.lowbit.policy import is_statistic
from fedqssl.runs.round import first_checkpoint, sampled
from tiny_run import rounds_of, tiny_context


def test_updates_by_hand():
    """The client received 0.5 rounded to 0.6 and moved it by -0.2; its batch-norm mean is what it measured."""
    before = {"w": torch.tensor([0.5]), "bn.running_mean": torch.tensor([3.0])}
    received = {"w": torch.tensor([0.6]), "bn.running_mean": torch.tensor([3.0])}
    states = {"a": {"w": torch.tensor([0.4]), "bn.running_mean": torch.tensor([7.0]), "act.low": torch.tensor(0.1)}}
    found = with_updates(before, {"a": received}, states)["a"]
    assert found["w"].item() == pytest.approx(0.3) and found["bn.running_mean"].item() == 7.0
    assert found["act.low"].item() == pytest.approx(0.1)


class Noting(InProcess):
    """Notes what every client received and sent, by round."""

    def train_clients(self, payloads, job):
        replies, failed = super().train_clients(payloads, job)
        self.pool.shared.noted.append((dict(payloads), {n: payload for n, (payload, _) in replies.items()}))
        return replies, failed


def test_a_round_adds_the_groups_mean_update_to_the_servers_model():
    context = tiny_context(algorithm="fed_seq", images=400, partition="dirichlet", beta=0.5, fraction=0.6, bits=4)
    object.__setattr__(context, "noted", [])
    after, lines = rounds_of(context, 2, engine_type=Noting)
    w = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    measured = {}
    for (received, sent), line in zip(context.noted, lines, strict=True):
        assert len(sent) == 2 and set(line["weights"]) == set(sent)
        total = sum(context.sizes[n] for n in sent)
        step: dict[str, torch.Tensor] = {}
        for name in sent:
            old = read_payload(received[name], 4, context.task)
            for key, x in read_payload(sent[name], 4, context.task).items():
                change = x if is_statistic(key) else x.double() - old[key].double()
                step[key] = step.get(key, 0) + change.double() * context.sizes[name] / total
        measured = {key: x.float() for key, x in step.items() if is_statistic(key)}
        w = {key: (x + step[key]).float() if key in step else x for key, x in w.items()} | measured
    got = read_payload(after.aggregated, 32, context.task)
    assert all(torch.allclose(got[key], w[key], rtol=2e-3, atol=1e-5) for key in got)


def test_steps_too_small_for_four_bits_survive_on_the_server():
    """A tiny learning rate moves few codes; the average of models would be the rounded model, whatever the server's was."""
    moved = {}
    for name in ("fed_seq", "fed_simclr"):
        context = tiny_context(algorithm=name, bits=4, lr=1e-6)
        w = read_payload(first_checkpoint(context).aggregated, 32, context.task)
        after = read_payload(rounds_of(context)[0].aggregated, 32, context.task)
        moved[name] = max(float((after[k] - x).norm() / x.norm()) for k, x in w.items() if x.ndim == 4)
    assert moved["fed_seq"] < 0.01 < 0.05 < moved["fed_simclr"]


@pytest.mark.parametrize(("clients", "fraction", "rounds"), [(10, 0.2, 5), (10, 0.3, 4), (3, 1.0, 1)])
def test_nobody_trains_again_before_everybody_has(clients, fraction, rounds):
    settings = {"clients": clients, "bits": 4, "fraction": fraction, "images": 400}
    turns, drawn = tiny_context(algorithm="fed_seq", **settings), tiny_context(algorithm="fed_simclr", **settings)
    cycles = [[sampled(turns, cycle * rounds + turn) for turn in range(rounds)] for cycle in range(4)]
    for cycle in cycles:
        assert {name for group in cycle for name in group} == set(turns.bits)
        assert len({len(group) for group in cycle}) == 1
        if clients % len(cycle[0]) == 0:
            assert sum(map(len, cycle)) == clients
    if rounds > 1:
        assert len({str(cycle) for cycle in cycles}) == 4, "every order is drawn anew"
        often = [name for number in range(rounds) for name in sampled(drawn, number)]
        assert len(set(often)) < len(often), "other algorithms draw anew in every round"


@pytest.mark.parametrize(("settings", "steps"), [({"server.dequantize_epochs": 0}, []), ({"server.steps": 3}, [3])])
def test_fed_qssl_plus_trains_what_fed_seq_gives_on_the_buffer(settings, steps):
    """Without server steps the two are the same; with them the sum of updates is trained, then handed out to nearest."""
    trained = []

    class Spy(ServerOperators):
        def train(self, state, where, epochs=None, *, steps=None, loss=None):
            trained.append((to_bytes(full_precision(self.context.task, state)), where, steps))
            return super().train(state, where, epochs, steps=steps, loss=loss)

    common = {"images": 400, "fraction": 0.6, **settings}
    context = tiny_context(algorithm="fed_qssl_plus", **common)
    summed, _ = rounds_of(tiny_context(algorithm="fed_seq", **common))
    after, (line,) = rounds_of(context, operators=Spy)
    assert trained == [(summed.aggregated, "buffer", count) for count in steps]
    assert (after.aggregated == summed.aggregated) == (not steps) == (line["server_loss"] is None)
    rounded = context.task.converted(4)
    write_state(rounded, read_payload(after.aggregated, 32, context.task))
    held = read_payload(after.payloads["client-00"], 4, context.task)
    assert all(torch.equal(held[key], x) for key, x in read_state(rounded).items() if x.ndim == 4)
