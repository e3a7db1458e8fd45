"""The engine of simulations: replies by name, and the reason of a client whose training diverged."""

from fedqssl.engines import in_process
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.client import ClientMetrics
from fedqssl.lowbit import NonFiniteError
from tiny_run import tiny_context


def test_who_diverges_is_left_out_with_the_reason(monkeypatch):
    """The largest clients start first; replies are in the order of names."""
    context, began = tiny_context(partition="dirichlet", beta=0.1, seed=1), []

    def perform(job, payload, data):
        began.append(data.name)
        assert payload == data.name.encode() and job.round_number == 2
        if data.name == "client-01":
            raise NonFiniteError("layer 'x'")
        return b"from " + payload, ClientMetrics(len(data.images), (), 0, 0.0)

    monkeypatch.setattr(in_process, "perform", perform)
    payloads = {name: name.encode() for name in reversed(list(context.bits))}
    replies, failed = InProcess(Pool(context)).train_clients(payloads, context.job(2, 0.1))
    assert failed == {"client-01": "layer 'x'"}
    assert [(name, payload) for name, (payload, _) in replies.items()] == [
        ("client-00", b"from client-00"),
        ("client-02", b"from client-02"),
    ]
    assert [context.sizes[name] for name in began] == sorted(context.sizes.values(), reverse=True)


def test_longest_jobs_first_by_images_and_measured_time_of_the_bits(monkeypatch):
    """A client with fewer images of slower bits comes before one with more images of faster bits."""
    context = tiny_context(bits=[4, 8, 32], partition="iid")
    engine, seconds = InProcess(Pool(context)), {4: 1.0, 8: 9.0, 32: 3.0}

    def perform(job, payload, data):
        return payload, ClientMetrics(len(data.images), (), 0, seconds[data.bits])

    monkeypatch.setattr(in_process, "perform", perform)
    assert engine.longest_first(context.bits) == sorted(context.bits, key=lambda n: (-context.sizes[n], n))
    engine.train_clients(dict.fromkeys(context.bits, b"model"), context.job(0, 0.1))
    assert [context.bits[name] for name in engine.longest_first(context.bits)] == [8, 32, 4]
