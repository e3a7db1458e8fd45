"""Every algorithm keeps the contract; each equals what its paper's equation gives when it is computed another way."""

import dataclasses
import importlib
import inspect
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedqssl.config import load_config
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms import ALGORITHMS, Arrived
from fedqssl.federated.algorithms.fed_distill import distillation_loss, targets
from fedqssl.federated.client import local_update
from fedqssl.federated.perform import perform
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.operators import ServerOperators
from fedqssl.federated.state import read_payload, read_state, write_state
from fedqssl.federated.task import batches
from fedqssl.federated.updates import decode_update
from fedqssl.lowbit import ContainerError, LowBitSGD, Precision, load_bytes, to_bytes, to_lowbit
from fedqssl.lowbit.container import read_header
from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.quant import compand_codes
from fedqssl.runs.round import first_checkpoint
from fedqssl.ssl.views import two_views
from tiny_run import known_rounds, rounds_of, tiny_context

CLIENTS = ("client-00", "client-01", "client-02")
MIXED, FULL = [4, 8, 32], [32, 32, 32]


class BackwardsPool(Pool):
    """Does jobs in the opposite order."""

    def run(self, what, function, jobs):
        done = super().run(what, function, dict(reversed(jobs.items())))
        return dict(reversed(done.items()))


class Backwards(InProcess):
    """Delivers replies in the opposite order, and notes what clients sent."""

    def train_clients(self, payloads, job):
        replies, failed = super().train_clients(payloads, job)
        self.pool.shared.uploads.update({n: payload for n, (payload, _) in replies.items()})
        return dict(reversed(replies.items())), failed


BACKWARDS = {"engine_type": Backwards, "pool_type": BackwardsPool}


def without_time(line):
    return {k: v for k, v in line.items() if not k.endswith("_seconds")}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_conformance_with_bits_of_4_8_and_32(name):
    """In each client's bits, both ways; counted by length; the same in any order; weights of those that replied."""
    context = tiny_context(algorithm=name, bits=MIXED)
    object.__setattr__(context, "uploads", {})
    after, (line,) = known_rounds(algorithm=name, bits=MIXED)
    again, (other,) = rounds_of(context, **BACKWARDS)
    assert after.payloads == again.payloads and after.aggregated == again.aggregated
    assert without_time(line) == without_time(other)

    assert set(after.payloads) == set(CLIENTS)
    for client, payload in after.payloads.items():
        model = context.task.converted(context.bits[client])
        load_bytes(model, payload)
        state = read_state(model)
        assert all(float(state[k[:-3] + "high"]) > float(state[k]) for k in state if k.endswith(".low")), "empty range"
    if ALGORITHMS[name].has_clients:
        assert set(context.uploads) == set(CLIENTS)
        for client, payload in context.uploads.items():
            ALGORITHMS[name].check(payload, context.bits[client], context.task)
            for other in set(MIXED) - {context.bits[client]}:
                with pytest.raises(ContainerError):
                    ALGORITHMS[name].check(payload, other, context.task)
        assert set(line["client_loss"]) == set(CLIENTS)
    else:
        assert context.uploads == {} and line["bytes_down"] == 0
    travelled = sum(map(len, context.uploads.values())) if ALGORITHMS[name].federates else 0
    assert line["bytes_up"] == sum(after.totals.up.values()) == travelled
    assert line["rejected"] == {}
    if line["weights"]:
        assert set(line["weights"]) == set(CLIENTS) and abs(math.fsum(line["weights"].values()) - 1) < 1e-12
        assert min(line["weights"].values()) > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_conformance_in_full_precision(name):
    """At 32 bits everyone is handed the aggregated model itself."""
    context = tiny_context(algorithm=name, bits=FULL, images=80)
    start = first_checkpoint(context)
    after, _ = rounds_of(context)
    assert all(read_header(p)["bits"] == "32" for p in after.payloads.values())
    if after.aggregated is None:
        assert name == "local_only" and len(set(after.payloads.values())) == 3
    else:
        assert set(after.payloads.values()) == {after.aggregated}
        assert after.aggregated != start.aggregated  # untrained: its batch norm has settled


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_short_file_each_with_a_citation_on_top(name):
    module = importlib.import_module(f"fedqssl.federated.algorithms.{name}")
    algorithm = ALGORITHMS[name]
    assert getattr(module, name.upper()) is algorithm and algorithm.name == name
    assert len(inspect.getsource(module).splitlines()) <= 150
    cited = r"\(.*(19|20)\d\d\)|\(Chen, Vikalo, Wang\)|^Control: .*\."
    assert re.search(cited, module.__doc__)
    assert algorithm.description and "\n" not in algorithm.description and len(algorithm.description) < 100


def test_labels_reach_supervised_clients_and_no_other(monkeypatch):
    seen = []
    monkeypatch.setattr("fedqssl.federated.client.train_steps", lambda *given: seen.append(given[6]) or [0.0])
    for name, algorithm in ALGORITHMS.items():
        context = tiny_context(algorithm=name)
        data = context.client("client-01")
        seen.clear()
        assert torch.equal(data.labels, context.train.labels[context.partition.clients["client-01"].train])
        perform(context.job(0, 0.1), first_checkpoint(context).payloads["client-01"], data)
        if algorithm.objective == "supervised":
            assert torch.equal(seen[0], data.labels)
        else:
            assert seen[0] is None


def test_supervised_training_uses_the_labels():
    context = tiny_context(algorithm="fed_avg")
    job, data = context.job(0, 0.1), context.client("client-01")
    payload = first_checkpoint(context).payloads["client-01"]
    other = dataclasses.replace(data, labels=data.labels.flip(0))
    sent = [local_update(payload, job, mine)[0] for mine in (data, data, other)]
    assert sent[0] == sent[1] != sent[2]
    with pytest.raises(ValueError, match="needs labels"):
        local_update(payload, job, dataclasses.replace(data, labels=None))


def supervised_steps(context, payload: bytes, mu: float = 0.0) -> bytes:
    """The client's E epochs at 32 bits, by torch's own SGD and autograd of ``F + mu/2 |w - w_0|^2``."""
    job = context.client("client-00")
    model = context.task.converted(32)
    load_bytes(model, payload)
    start = [p.detach().clone() for p in model.parameters()]
    opt = torch.optim.SGD(model.parameters(), lr=context.config.lr)
    draws = generator(context.config.seed, "local training", "client-00", 0)
    model.train()
    for _ in range(context.config.local_epochs):
        for index in batches(len(job.images), context.config.batch_size, draws):
            labels = job.labels[index]
            loss = F.cross_entropy(model(two_views(job.images[index], draws)), torch.cat([labels, labels]))
            pull = sum((p - q).square().sum() for p, q in zip(model.parameters(), start, strict=True))
            opt.zero_grad()
            (loss + mu / 2 * pull).backward()
            opt.step()
    return to_bytes(model)


def test_fed_avg_with_one_client_is_central_training():
    """Step for step: torch's SGD on the one client's images gives the aggregated model, bit for bit."""
    context = tiny_context(algorithm="fed_avg", clients=1, bits=32, images=80, local_epochs=2)
    start = first_checkpoint(context)
    after, (line,) = rounds_of(context)
    assert line["weights"] == {"client-00": 1.0}
    assert after.aggregated == after.payloads["client-00"] == supervised_steps(context, start.aggregated)


def test_shares_are_of_the_images_of_those_who_replied():
    samples = {"a": 30, "b": 10, "c": 60}
    arrived = Arrived({"b": b"", "a": b""}, samples, ("a", "b", "c"), dict.fromkeys(samples, 4))
    assert arrived.shares() == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize("name", ["fed_avg", "fed_simclr"])
def test_plain_averages_are_weighted_by_images(name):
    """With clients of very different sizes, from what they sent: ``sum_k |D_k| w_k / |D|``."""
    context = tiny_context(algorithm=name, bits=MIXED, partition="dirichlet", beta=0.1, seed=1)
    object.__setattr__(context, "uploads", {})
    after, (line,) = rounds_of(context, **BACKWARDS)
    sizes = {n: len(split.train) for n, split in context.partition.clients.items()}
    assert max(sizes.values()) > 1.5 * min(sizes.values())
    assert line["weights"] == {n: pytest.approx(size / sum(sizes.values())) for n, size in sizes.items()}
    states = {n: read_payload(p, context.bits[n], context.task) for n, p in context.uploads.items()}
    got = read_payload(after.aggregated, 32, context.task)
    for key, x in got.items():
        want = sum(sizes[n] * states[n][key].double() for n in CLIENTS) / sum(sizes.values())
        assert torch.allclose(x.double(), want, rtol=2e-3, atol=1e-5), key  # batch norm travels in 16 bits


def test_fed_prox_with_mu_0_is_fed_avg_and_otherwise_is_not():
    plain, _ = known_rounds(algorithm="fed_avg")
    for mu, same in ((0.0, True), (0.3, False)):
        after, _ = rounds_of(tiny_context(algorithm="fed_prox", **{"fedprox.mu": mu}))
        assert (after.payloads == plain.payloads) == (after.aggregated == plain.aggregated) == same


def test_fed_prox_minimises_its_equation():
    """At 32 bits: the gradient of ``F + mu/2 |w - w_received|^2`` by autograd. Batch norm and biases are pulled, too."""
    context = tiny_context(
        algorithm="fed_prox", clients=1, bits=32, images=80, local_epochs=2, lr=0.1, **{"fedprox.mu": 1.5}
    )
    start = first_checkpoint(context).aggregated
    after, _ = rounds_of(context)
    read = lambda payload: read_payload(payload, 32, context.task)  # noqa: E731
    got, want, unpulled = (
        read(after.aggregated),
        read(supervised_steps(context, start, 1.5)),
        read(supervised_steps(context, start, 0.0)),
    )
    for key in want:
        assert torch.allclose(got[key], want[key], rtol=2e-3, atol=1e-5), key
    assert not all(torch.allclose(got[k], unpulled[k], rtol=2e-3, atol=1e-5) for k in want)


@pytest.mark.parametrize("rule", ["stored", "latent"])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_proximal_term_on_codes(rule, bits):
    """``x' = x - lr (g + mu (x - x_0))`` with x what the codes stand for; x_0 is kept as codes and counted."""
    torch.manual_seed(0)
    model = to_lowbit(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), Precision.for_bits(bits))
    lr, mu = 4.0, 0.1  # steps of more than half a cell, so that codes move
    opt = LowBitSGD(model, lr, rule=rule, rounding="nearest", proximal=mu)
    first = {n: w.parameters_of_codes() for n, w in opt.weights.items()}
    latent = dict(first)
    biases = {n: p.detach().clone() for n, p in opt.floats.items()}
    moved = False
    for step in range(4):
        F.cross_entropy(model(torch.rand(8, 6)), torch.arange(8) % 3).backward()
        position = latent if rule == "latent" else {n: w.parameters_of_codes() for n, w in opt.weights.items()}
        wanted = {
            n: position[n] - lr * (w.gradient.unpack().double() + mu * (position[n] - first[n]))
            for n, w in opt.weights.items()
        }
        floats = {n: p - lr * (p.grad + mu * (p - biases[n])) for n, p in opt.floats.items()}
        opt.step()
        for n, w in opt.weights.items():
            assert torch.equal(w.unpacked(), compand_codes(wanted[n], bits, w.m, w.compander)), (n, step)
            moved |= not torch.equal(w.parameters_of_codes(), first[n])
        assert all(torch.allclose(p, floats[n].detach(), atol=1e-6) for n, p in opt.floats.items())
        latent = {n: x.float().double() for n, x in wanted.items()}
    assert moved
    kept = sum(w.nbytes + 4 for w in opt.weights.values()) + 4 * sum(p.numel() for p in opt.floats.values())
    shadows = 4 * sum(x.numel() for x in first.values()) if rule == "latent" else 0
    assert opt.state_bytes() == kept + shadows


class EqualLosses(ServerOperators):
    def dequantize(self, payloads):
        return {name: (state, 1.5) for name, (state, _) in super().dequantize(payloads).items()}


def test_fed_qssl_without_buffer_epochs_and_with_equal_losses_is_plain_averaging():
    idle = {"server.dequantize_epochs": 0, "server.requantize_epochs": 0}
    context = tiny_context(algorithm="fed_qssl", **idle)
    assert len({len(split.train) for split in context.partition.clients.values()}) == 1
    after, (line,) = rounds_of(context, operators=EqualLosses)
    plain, (other,) = known_rounds(algorithm="fed_simclr")
    assert line["weights"] == other["weights"]
    assert after.aggregated == plain.aggregated and after.payloads == plain.payloads
    weighted, _ = rounds_of(context)
    assert weighted.aggregated != plain.aggregated  # what equal losses are needed for


def test_local_only_clients_never_see_each_other():
    context = tiny_context(algorithm="local_only")
    after, lines = rounds_of(context, 2)
    chain = first_checkpoint(context).payloads
    for number in range(2):
        job = context.job(number, lines[number]["lr"])
        chain = {n: local_update(p, job, context.client(n))[0] for n, p in chain.items()}
    assert after.payloads == chain and after.aggregated is None


def test_local_models_are_trained_as_the_algorithm_trains():
    """Section 8 evaluates a supervised client's own model after local training: FedProx keeps its term, FedPAQ gives a model."""
    mu = {"fedprox.mu": 5.0, "lr": 0.05}
    sent = {}
    for name in ("fed_avg", "fed_prox", "fed_paq"):
        context = tiny_context(algorithm=name, bits=MIXED, **mu)
        start = first_checkpoint(context).payloads["client-02"]
        sent[name], _ = perform(context.job(0, 0.05, return_model=True), start, context.client("client-02"))
    assert sent["fed_paq"] == sent["fed_avg"] != sent["fed_prox"]
    prox = tiny_context(algorithm="fed_prox", bits=MIXED, **mu)
    assert sent["fed_prox"] == ALGORITHMS["fed_prox"].client(start, prox.job(0, 0.05), prox.client("client-02"))[0]


def test_fed_paq_adds_the_mean_of_the_decoded_updates():
    context = tiny_context(algorithm="fed_paq")
    object.__setattr__(context, "uploads", {})
    before = read_payload(first_checkpoint(context).aggregated, 32, context.task)
    after, (line,) = rounds_of(context, **BACKWARDS)
    updates = {n: decode_update(p) for n, p in context.uploads.items()}
    got = read_payload(after.aggregated, 32, context.task)
    for key, x in before.items():
        want = x.double() + sum(line["weights"][n] * updates[n][key].double() for n in CLIENTS)
        assert torch.allclose(got[key].double(), want, rtol=1e-3, atol=1e-6), key  # batch norm travels in 16 bits


def refined_by_hand(context, w: dict, steps: int, loss=None) -> dict:
    """``steps`` steps on the buffer by torch's own SGD, epoch after epoch, from the state ``w``."""
    loss = loss or (lambda outputs, index: context.task.loss(outputs))
    model = context.task.converted(32)
    write_state(model, w)
    opt, draws = torch.optim.SGD(model.parameters(), lr=context.config.lr), generator(context.config.seed, "buffer", 0)
    model.train()
    done = 0
    while done < steps:
        for index in batches(len(context.buffer()), context.config.batch_size, draws)[: steps - done]:
            opt.zero_grad()
            loss(model(two_views(context.buffer()[index], draws)), index).backward()
            opt.step()
            done += 1
    return {**w, **read_state(model)}


def averaged_by_hand(context) -> dict:
    """The average of the uploads by shares of images; ranges, which full-precision models lack, over those that have them."""
    w = {}
    for name in CLIENTS:
        for key, x in read_payload(context.uploads[name], context.bits[name], context.task).items():
            holders = [n for n in CLIENTS if context.bits[n] != 32 or not key.endswith((".low", ".high"))]
            w[key] = w.get(key, 0) + x.double() * (context.sizes[name] / sum(context.sizes[n] for n in holders))
    return {key: x.float() for key, x in w.items()}


def test_similarities_of_teachers_by_hand():
    """Cosines 0.6 and 0 of two images, T = 0.5; three quarters of the weight are the second teacher's."""
    teachers = {"a": torch.tensor([[2.0, 0.0], [3.0, 4.0]]), "b": torch.tensor([[0.0, 1.0], [5.0, 0.0]])}
    same = math.exp(1 / 0.5)
    other = 0.25 * math.exp(0.6 / 0.5) + 0.75 * math.exp(0.0)
    want = torch.tensor([[same, other], [other, same]]) / (same + other)
    assert torch.allclose(targets(teachers, {"a": 0.25, "b": 0.75}, 0.5), want, atol=1e-6)
    assert torch.allclose(targets(teachers, {"a": 0.25, "b": 0.75}, 1e-3), torch.eye(2))  # no overflow


@pytest.mark.parametrize(("images", "dim", "temperature"), [(2, 2, 0.5), (5, 3, 0.2), (8, 16, 1.0)])
def test_distillation_loss_by_hand(images, dim, temperature):
    draw = torch.Generator().manual_seed(images)
    z = torch.randn(2 * images, dim, generator=draw, dtype=torch.float64)
    p = torch.rand(images, images, generator=draw, dtype=torch.float64)
    p = p / p.sum(1, keepdim=True)
    want = 0.0
    for a, b in ((0, images), (images, 0)):
        for i in range(images):
            logits = [float(F.cosine_similarity(z[a + i], z[b + j], dim=0)) / temperature for j in range(images)]
            log_total = math.log(sum(math.exp(x) for x in logits))
            want -= sum(float(p[i, j]) * (logits[j] - log_total) for j in range(images)) / (2 * images)
    assert float(distillation_loss(z, p, temperature)) == pytest.approx(want, rel=1e-9)


def test_fed_distill_by_hand():
    """The average by shares, trained towards the uploads' similarities of the same images of the buffer; then nearest codes."""
    work = {"server.steps": 5, "distill.temperature": 0.2}
    context = tiny_context(algorithm="fed_distill", images=400, partition="dirichlet", beta=0.5, **work)
    object.__setattr__(context, "uploads", {})
    after, (line,) = rounds_of(context, **BACKWARDS)
    teachers = {}
    for name in CLIENTS:
        model = context.task.converted(context.bits[name])
        load_bytes(model, context.uploads[name])
        with torch.no_grad():
            teachers[name] = F.normalize(model.eval()(context.buffer() / 255), dim=1)

    def loss(outputs, index):
        similar = {name: z[index] @ z[index].T for name, z in teachers.items()}
        p = sum(line["weights"][name] * (s / 0.2).exp() for name, s in similar.items())
        one, two = F.normalize(outputs, dim=1).split(len(index))
        logits = one @ two.T / context.config.ssl.temperature
        p = p / p.sum(1, keepdim=True)
        return (F.cross_entropy(logits, p) + F.cross_entropy(logits.T, p)) / 2

    want = refined_by_hand(context, averaged_by_hand(context), 5, loss)
    got = read_payload(after.aggregated, 32, context.task)
    assert all(
        torch.allclose(got[key], want[key], rtol=2e-3, atol=1e-4) for key in got
    )  # batch norm travels in 16 bits
    refined = refined_by_hand(context, averaged_by_hand(context), 5)
    assert not all(torch.allclose(got[key], refined[key], rtol=2e-3, atol=1e-4) for key in got)
    rounded = context.task.converted(4)
    write_state(rounded, want)
    kept = context.task.converted(4)
    load_bytes(kept, after.payloads["client-00"])
    pairs = list(zip(codes_of(kept), codes_of(rounded), strict=True))
    assert sum(int((a != b).sum()) for a, b in pairs) <= 0.001 * sum(a.numel() for a, _ in pairs)  # ties
    assert line["server_loss"] > 0 and line["weights"] == {
        name: context.sizes[name] / sum(context.sizes.values()) for name in CLIENTS
    }


def test_a_teacher_with_outputs_that_are_not_finite_is_left_out():
    class Broken(ServerOperators):
        def embed(self, payloads):
            return {n: z * (math.nan if n in broken else 1.0) for n, z in super().embed(payloads).items()}

    broken = {"client-01"}
    context = tiny_context(algorithm="fed_distill", **{"server.steps": 2})
    after, (line,) = rounds_of(context, operators=Broken)
    assert line["rejected"] == {"client-01": "its outputs for the buffer are not finite"}
    assert line["weights"] == {"client-00": 0.5, "client-02": 0.5} and math.isfinite(line["server_loss"])
    assert set(after.payloads) == set(CLIENTS)
    broken |= set(CLIENTS)
    kept, (line,) = rounds_of(context, operators=Broken)
    assert "nothing to aggregate" in line["round_rejected"]
    assert kept.payloads == first_checkpoint(context).payloads


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({"server.steps": 5}, 5), ({"server.dequantize_epochs": 2}, 2 * 2 * 3), ({"server.dequantize_epochs": 0}, 0)],
)
def test_fed_refine_by_hand(settings, steps):
    """w = sum of shares, then steps on the buffer (epochs: as many as Fed-QSSL takes for three models), then nearest codes."""
    context = tiny_context(algorithm="fed_refine", images=400, partition="dirichlet", beta=0.5, **settings)
    assert context.task.steps(len(context.buffer())) == 2 and len(set(context.sizes.values())) == 3
    object.__setattr__(context, "uploads", {})
    after, (line,) = rounds_of(context, **BACKWARDS)
    total = sum(context.sizes.values())
    want = refined_by_hand(context, averaged_by_hand(context), steps)
    got = read_payload(after.aggregated, 32, context.task)
    assert all(
        torch.allclose(got[key], want[key], rtol=2e-3, atol=1e-5) for key in got
    )  # batch norm travels in 16 bits
    assert line["weights"] == {name: context.sizes[name] / total for name in CLIENTS}
    assert (line["server_loss"] is None) == (steps == 0)
    plain, _ = known_rounds(algorithm="fed_simclr", images=400, partition="dirichlet", beta=0.5)
    assert (after.payloads == plain.payloads) == (steps == 0)
    rounded = context.task.converted(4)
    write_state(rounded, want)
    kept = context.task.converted(4)
    load_bytes(kept, after.payloads["client-00"])
    same = [torch.equal(a, b) for a, b in zip(codes_of(kept), codes_of(rounded), strict=True)]
    assert same and all(same)


def codes_of(model) -> list[torch.Tensor]:
    return [module.unpacked() for module in model.modules() if isinstance(module, LowBitWeight)]


def test_server_only_works_as_much_as_fed_qssls_server_and_on_the_buffer_alone():
    seen = []

    class Spy(ServerOperators):
        def train(self, state, where, epochs=None, *, steps=None, loss=None):
            seen.append((where, epochs, steps))
            return super().train(state, where, epochs, steps=steps, loss=loss)

    tiny_buffer = tiny_context(algorithm="server_only", images=400, **{"server.dequantize_epochs": 2})
    assert tiny_buffer.task.steps(len(tiny_buffer.buffer())) == 2
    rounds_of(tiny_buffer, operators=Spy)
    rounds_of(tiny_context(algorithm="server_only", **{"server.steps": 5}), operators=Spy)
    rounds_of(tiny_context(algorithm="central", local_steps=2), operators=Spy)
    context = tiny_context(algorithm="central", local_epochs=3)
    rounds_of(context, operators=Spy)
    assert seen == [
        ("buffer", None, 2 * 2 * 3),  # two epochs of two steps for each of three clients
        ("buffer", None, 5),
        ("everywhere", None, 2 * 3),  # as many as the three clients take
        ("everywhere", 3, None),
    ]
    split = context.partition
    theirs = sorted(set().union(*(c.train.tolist() for c in split.clients.values())))
    assert not set(theirs) & set(split.buffer.tolist())
    pixels = [sorted(x.flatten(1).tolist()) for x in (context.everyone(), context.train.images[theirs])]
    assert pixels[0] == pixels[1]


@pytest.mark.parametrize(
    ("fraction", "clients", "least", "taken"), [(0.07, 100, 1, 7), (0.5, 3, 1, 2), (0.1, 3, 2, 2), (1.0, 4, 1, 4)]
)
def test_a_fraction_of_the_clients_takes_part(fraction, clients, least, taken):
    from types import SimpleNamespace

    from fedqssl.runs.round import sampled

    config = load_config("smoke", {"clients": clients, "bits": 4, "fraction": fraction, "min_clients": least})
    names = {f"client-{i:03d}": 4 for i in range(clients)}
    context = SimpleNamespace(config=config, bits=names, algorithm=ALGORITHMS["fed_qssl"])
    draws = [sampled(context, r) for r in range(20)]
    assert all(len(set(names)) == taken and names == sorted(names) for names in draws)
    assert taken == clients or len(set(map(tuple, draws))) > 1
