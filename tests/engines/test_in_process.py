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
