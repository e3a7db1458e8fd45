"""The adapter without processes: the same bytes as in process, in whatever order replies come, and whatever some clients send."""

import dataclasses
import functools
import math
import time
from types import SimpleNamespace

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from client_roles import roles
from direct_grid import DirectGrid
from fedqssl.config import load_config
from fedqssl.engines.flower.client import client_app
from fedqssl.engines.flower.engine import FlowerEngine
from fedqssl.engines.flower.exchange import Exchange
from fedqssl.engines.flower.wire import STYPE, Capabilities, Reply, Request, WireError, pack, unpack
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.server_state import equal
from fedqssl.lowbit import load_bytes, to_bytes
from fedqssl.lowbit.policy import state_of
from fedqssl.runs import RunError
from fedqssl.runs.clock import clock_of
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.round import first_checkpoint
from flower_pictures import CLIENTS, SETTINGS, in_one_place, rounds_in_one_place
from tiny_run import played, rounds_of

ONE_STEP = {"local_steps": 1, "server.steps": 3}
"""Where training is not the point."""


def engine_of(context, parties, seed=0):
    """An engine whose nodes 101, 102, ... are these clients."""
    nodes = {name: 101 + i for i, name in enumerate(sorted(parties))}
    grid = DirectGrid({nodes[n]: client_app(functools.partial(lambda r, c: r, parties[n])) for n in nodes}, seed)
    engine = FlowerEngine(context, "run-1", Exchange(grid, poll=0.01, apart=bool(seed)))
    found = engine.discover({str(i): i for i in nodes.values()})
    for key, told in found.items():
        engine.nodes[told.name], engine.known[told.name] = int(key), told
    return engine


def fleet_context(pictures, told, **changes):
    """What the server of a fleet with these clients knows."""
    from fedqssl.deploy.fleet import ServerData
    from fedqssl.deploy.roster import ServerImages

    config = load_config("smoke", {**SETTINGS, **changes})
    return ServerImages(ServerData(f"folder:{pictures}/buffer", None)).context(config, told)


def timeless(lines):
    return [{k: v for k, v in line.items() if not k.endswith("_seconds")} for line in lines]


@pytest.fixture
def reference(pictures):
    return rounds_in_one_place(pictures, 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_same_bytes_as_in_process_in_any_order(pictures, tmp_path, reference, seed):
    context = in_one_place(pictures)
    now, lines = played(context, engine_of(context, roles(pictures, tmp_path), seed))
    assert now.payloads == reference[0].payloads and now.aggregated == reference[0].aggregated
    assert timeless(lines) == timeless(reference[1])


@pytest.mark.parametrize("what", ["clusters", "clock"])
def test_clusters_and_clock_are_the_same_as_in_process(pictures, tmp_path, what):
    """A deadline of the clock is simulated: Flower waits for everybody that is asked."""
    table = tmp_path / "table.toml"
    table.write_text('[default]\nuplink = "1 Mbit/s"\n[clients.van-3]\nuplink = "1 kbit/s"\n')
    clock = {"clock": str(table), "deadline": 60.0}
    changes = {"algorithm": "fed_simclr", **ONE_STEP, "min_clients": 1, "rounds": 3}
    context = in_one_place(pictures, **changes, **({"clusters": 2} if what == "clusters" else clock))
    engine = engine_of(context, roles(pictures, tmp_path), 1)
    timed = clock_of(context, RunFolder.create(tmp_path / "run", overwrite=False))
    with Pool(context) as pool:
        found = [played(context, carried, pool, 2, timed) for carried in (engine, InProcess(pool))]
    (there, lines), (here, expected) = found
    assert there.payloads == here.payloads and equal(there.server_state, here.server_state)
    assert timeless(lines) == timeless(expected)
    if what == "clusters":
        assert set(lines[0]["clusters"].values()) == {0, 1}
    else:
        assert (
            engine.deadline is None and list(lines[1]["rejected"]) == ["van-3"] and lines[1]["simulated_time"] == 120.0
        )


@pytest.mark.parametrize(
    "algorithm", ["fed_simclr", "fed_paq", "fed_refine", "fed_distill", "local_only", "server_only"]
)
def test_other_algorithms_run_unchanged(pictures, tmp_path, algorithm):
    """FedPAQ sends updates and needs labels: the van has none, and says so."""
    work = {"local_steps": 3, "server.steps": 4} if algorithm in ("fed_refine", "fed_distill") else {}
    context = in_one_place(pictures, algorithm=algorithm, min_clients=1, rounds=1, **work)
    parties = roles(pictures, tmp_path)
    now, (line,) = played(context, engine_of(context, parties), count=1)
    if algorithm == "fed_paq":
        assert list(line["rejected"]) == ["van-3"] and "DataError" in line["rejected"]["van-3"]
        assert sorted(line["weights"]) == ["car-1", "car-2"]
    else:
        expected, (wanted,) = rounds_of(context)
        assert (now.payloads, now.aggregated) == (expected.payloads, expected.aggregated)
        assert timeless([line]) == timeless([wanted])


def test_central_needs_all_images_in_one_place(pictures, tmp_path):
    told = {name: role.capabilities() for name, role in roles(pictures, tmp_path).items()}
    context = fleet_context(pictures, told, algorithm="central")
    with pytest.raises(ValueError, match="central needs all clients' images in one place"):
        played(context, engine_of(context, roles(pictures, tmp_path)), count=1)


def changed(reply, payload=None, **values):
    about, old = unpack(reply.content, Reply)
    records = pack(dataclasses.replace(about, **values), old if payload is None else payload)
    return Message(records, reply_to=reply)


def with_payload(reply, message, payload):
    about, _ = unpack(reply.content, Reply)
    return Message(pack(about, payload), reply_to=message)


def spoilt(context, how):
    """A function from an honest reply of car-1 to what arrives in its place, and what the reason must say."""
    task, honest = context.task, to_bytes(context.task.converted(4))
    nan = task.converted(4)
    entry = next(e for e in state_of(nan).values() if e.role == "averaged")
    entry.assign(torch.full(entry.shape, float("nan")))
    payloads = {
        "wrong bits": (to_bytes(task.converted(8)), "bits 8 in the bytes, 4 in the model"),
        "another shape": (to_bytes(dataclasses.replace(task, width=8).converted(4)), "architecture|shape|allowed"),
        "not finite": (to_bytes(nan), "not finite"),
        "truncated": (honest[:-100], "truncated"),
        "changed on the way": (honest[:-1] + bytes([honest[-1] ^ 1]), "checksum"),
        "empty": (b"", "not a fedqssl model"),
        "a gigabyte": (bytes(1 << 30), "more than"),
    }
    return payloads[how]


@pytest.mark.parametrize(
    "how", ["wrong bits", "another shape", "not finite", "truncated", "changed on the way", "empty", "a gigabyte"]
)
def test_a_bad_payload_costs_its_own_update_only(pictures, tmp_path, how):
    context = in_one_place(pictures, min_clients=2, **ONE_STEP)
    engine = engine_of(context, roles(pictures, tmp_path))
    payload, words = spoilt(context, how)
    engine.exchange.grid.spoil[engine.nodes["car-1"]] = lambda reply, m: with_payload(reply, m, payload)
    _, (line,) = played(context, engine, count=1)
    assert list(line["rejected"]) == ["car-1"]
    assert any(word in line["rejected"]["car-1"] for word in words.split("|")), line["rejected"]
    assert sorted(line["weights"]) == ["car-2", "van-3"] and sum(line["weights"].values()) == pytest.approx(1)


def test_a_replayed_reply_is_refused(pictures, tmp_path):
    """The bytes of round 1 are a valid model, but they are not what round 2 asked for."""
    context = in_one_place(pictures, min_clients=2)
    engine, kept = engine_of(context, roles(pictures, tmp_path)), []

    def replay(reply, message):
        kept.append(reply)
        return Message(kept[0].content, reply_to=message)

    engine.exchange.grid.spoil[engine.nodes["car-1"]] = replay
    _, lines = played(context, engine)
    assert lines[0]["rejected"] == {}
    assert "perhaps replayed" in lines[1]["rejected"]["car-1"] and sorted(lines[1]["weights"]) == ["car-2", "van-3"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"samples": 10**9}, "claims 1000000000 images, but had"),
        ({"nonce": "0" * 32}, "another message"),
        ({"run": "another"}, "another message"),
        ({"round_number": 7}, "another message"),
        ({"losses": (0.1,) * 1000}, "out of range"),
    ],
)
def test_a_false_claim_is_refused(pictures, tmp_path, values, words):
    context = in_one_place(pictures, min_clients=2, **ONE_STEP)
    engine = engine_of(context, roles(pictures, tmp_path))
    engine.exchange.grid.spoil[engine.nodes["car-2"]] = lambda reply, m: Message(
        changed(reply, **values).content, reply_to=m
    )
    _, (line,) = played(context, engine, count=1)
    assert list(line["rejected"]) == ["car-2"] and words in line["rejected"]["car-2"]


def test_who_raises_or_is_late_or_away_is_named(pictures, tmp_path):
    context = in_one_place(pictures, min_clients=1, deadline=8)
    engine = engine_of(context, roles(pictures, tmp_path))

    def broken(*arguments):
        raise ZeroDivisionError("of a secret file")

    engine.exchange.grid.apps[engine.nodes["car-1"]] = broken
    engine.exchange.grid.spoil[engine.nodes["car-2"]] = lambda reply, message: None
    began = time.monotonic()
    _, (line,) = played(context, engine, count=1)
    assert line["rejected"] == {
        "car-1": "it raised an error: ZeroDivisionError",
        "car-2": "no reply within 8 s",
    }
    assert time.monotonic() - began > 8
    del engine.nodes["car-1"]
    assert engine.train_clients({"car-1": b""}, context.job(0, 0.1)) == ({}, {"car-1": "it is not connected"})
    least = in_one_place(pictures)
    strict = engine_of(least, roles(pictures, tmp_path))
    strict.exchange.grid.spoil[strict.nodes["car-2"]] = lambda reply, m: Message(
        changed(reply, samples=1).content, reply_to=m
    )
    with pytest.raises(RunError, match=r"2 valid updates, fewer than min_clients = 3 \(car-2: it claims 1 images"):
        played(least, strict, count=1)


@pytest.mark.parametrize("told", [1e300, -0.5, math.nan, math.inf])
def test_an_accuracy_that_cannot_be_is_left_out(told, monkeypatch):
    """1e300 became 100%."""
    engine = FlowerEngine(
        SimpleNamespace(
            config=SimpleNamespace(deadline=None, clock=None, rounds=1), task=SimpleNamespace(supervised=False)
        ),
        "run",
    )
    replies = {"a": (Reply("run", "n", 1, 10, accuracy=told), b""), "b": (Reply("run", "n", 1, 10, accuracy=0.5), b"")}
    monkeypatch.setattr(engine, "_ask", lambda *arguments: (replies, {}))
    context = SimpleNamespace(config=SimpleNamespace(rounds=1), job=lambda *arguments: None)
    assert engine.accuracies(context, {}) == {"b": 0.5} and list(engine.unbelievable) == ["a"]


def test_final_models_are_judged_where_the_labels_are(pictures, tmp_path):
    context, parties = in_one_place(pictures), roles(pictures, tmp_path)
    engine = engine_of(context, parties)
    now = first_checkpoint(context)
    found = engine.accuracies(context, now.payloads)
    from fedqssl.runs.evaluate import own_accuracy

    sets = [(data.images, data.labels) for data in (parties["car-1"].held, parties["car-1"].tested)]
    task = dataclasses.replace(context.task, classes=10)
    assert found["car-1"] == own_accuracy(
        task, "car-1", 4, now.payloads["car-1"], *sets
    )  # as a simulation's is measured
    assert sorted(found) == ["car-1", "car-2"] and all(0 <= a <= 1 for a in found.values())
    for name in CLIENTS:
        assert (tmp_path / name / "model.fqssl").read_bytes() == now.payloads[name]
    import fedqssl

    device = fedqssl.load(tmp_path / "car-1" / "device.fqssl")
    assert device.predict(pictures / "car-1")[0].name.startswith("marked-") and "car-1" in device.card()
    assert not (tmp_path / "van-3" / "device.fqssl").exists()


def test_our_arrays_are_not_for_averaging():
    """Flower's own strategies must refuse the codes."""
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    records = [pack(Reply("r", "n", 0, 1), b"12345678") for _ in range(2)]
    for record in records:
        record["metrics"] = MetricRecord({"num-examples": 1.0})
    with pytest.raises(TypeError, match=STYPE):
        records[0]["model"]["payload"].numpy()
    with pytest.raises(Exception, match=STYPE):
        aggregate_arrayrecords(records, "num-examples")


def test_what_is_not_a_message_is_refused():
    good = pack(Capabilities("a", 4, 10, 2))
    assert unpack(good, Capabilities) == (Capabilities("a", 4, 10, 2), b"")
    for bad in (
        "",
        "[]",
        '{"name": "a"}',
        '{"name": "a", "bits": "many", "samples": 1, "test_samples": 0}',
        "x" * 70000,
    ):
        records = pack(Capabilities("a", 4, 10, 2))
        records["about"]["json"] = bad
        with pytest.raises(WireError):
            unpack(records, Capabilities)
    with pytest.raises(WireError, match="Request"):
        unpack(good, Request)
    other = pack(Reply("r", "n", 0, 1), b"1234")
    other["model"] = ArrayRecord({"payload": Array(dtype="uint8", shape=(4,), stype="numpy.ndarray", data=b"1234")})
    with pytest.raises(WireError, match="not of our type"):
        unpack(other, Reply)


def test_a_job_from_elsewhere_is_checked(pictures):
    from fedqssl.federated.job import JobError
    from fedqssl.federated.perform import read_job

    context = in_one_place(pictures)
    job = context.job(1, 0.3)
    assert read_job(job.to_json()) == job
    values = job.to_json()
    assert {"mu", "plainly"} < values.keys()  # names on the wire, whatever they are called here
    for change, words in [
        ({"algorithm": "fed_magic"}, "unknown algorithm"),
        ({"lr": "fast"}, "lr"),
        ({"epochs": 0}, "out of range"),
        ({"task": {**values["task"], "model": "os:system"}}, "allow that with --trust"),
        ({"algorithm": "os:system"}, "allow that with --trust"),
    ]:
        with pytest.raises(JobError, match=words):
            read_job({**values, **change})


def test_load_bytes_is_what_checks_payloads(pictures):
    """The control of the spoilt payloads above: an honest one is taken."""
    task = in_one_place(pictures).task
    honest, model = to_bytes(task.converted(4)), task.converted(4)
    load_bytes(model, honest)
    assert to_bytes(model) == honest


def test_a_fleet_and_its_workers_give_the_same_bytes(pictures, tmp_path):
    """The server knows numbers of images and its own buffer; two worker processes de-quantize and re-quantize."""
    told = {name: role.capabilities() for name, role in roles(pictures, tmp_path).items()}
    context = fleet_context(pictures, told)
    assert context.sizes == {n: c.samples for n, c in told.items()} and context.label_counts() is None
    with Pool(context, workers=2) as pool:
        now, _ = played(context, engine_of(context, roles(pictures, tmp_path)), pool, 1)
        assert pool.peak_memory() > 0
    assert now.payloads == rounds_in_one_place(pictures, 1)[0].payloads
