"""One client cannot end a run: uploads that pass the checks of the wire but say what no training can have given."""

import dataclasses
import json
import math

import pytest
import torch

from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.server.usable import UnusableAggregateError, check_usable
from fedqssl.federated.state import read_payload, read_state, weight_names
from fedqssl.federated.updates import encode_update
from fedqssl.lowbit import NonFiniteError
from fedqssl.runs import RunFolder, resume, start
from fedqssl.runs import round as rounds
from fedqssl.runs.rescue import change, without_culprits
from hostile import HOSTILE, random_upload
from tiny_run import figures, model_bytes, played, rounds_of, silent, tiny, tiny_context

IDLE = {"server.dequantize_epochs": 0, "server.requantize_epochs": 0}
TINY = {"images": 80, **IDLE}
ONE = "client-01"


def spoil(monkeypatch, algorithm, spoiled, victims=(ONE,)):
    """From now on these clients' replies go through ``spoiled(upload, metrics, job)``."""
    entry = ALGORITHMS[algorithm]

    def client(payload, job, data):
        sent, metrics = entry.client(payload, job, data)
        return spoiled(sent, metrics, job) if data.name in victims else (sent, metrics)

    monkeypatch.setitem(ALGORITHMS, algorithm, dataclasses.replace(entry, client=client))


def uploads(monkeypatch, algorithm, change, victims=(ONE,)):
    spoil(monkeypatch, algorithm, lambda sent, metrics, job: (change(sent), metrics), victims)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("bits", [[4, 2, 8], [4, 32, 8]], ids=["low bits", "full precision"])
def test_implausible_models_are_left_out(monkeypatch, kind, bits):
    if kind == "no scales" and 32 in bits:
        pytest.skip("full precision has no scales")
    context = tiny_context(algorithm="fed_simclr", bits=bits, **TINY)
    uploads(monkeypatch, "fed_simclr", HOSTILE[kind])
    after, (line,) = rounds_of(context)
    assert set(line["rejected"]) == {ONE} and "is not plausible" in line["rejected"][ONE]
    assert set(line["weights"]) == {"client-00", "client-02"} and "round_rejected" not in line
    assert all(bool(x.isfinite().all()) for x in read_payload(after.aggregated, 32, context.task).values())


@pytest.mark.parametrize("kind", ["negative variances", "huge variances", "huge gains", "huge biases", "huge means"])
def test_implausible_updates_are_left_out(monkeypatch, kind):
    context = tiny_context(algorithm="fed_paq", **TINY)
    uploads(monkeypatch, "fed_paq", HOSTILE[kind])
    _, (line,) = rounds_of(context)
    assert set(line["rejected"]) == {ONE} and "is not plausible" in line["rejected"][ONE]
    assert set(line["weights"]) == {"client-00", "client-02"}


def test_a_group_of_hostile_clients_alone_keeps_the_model(monkeypatch, tmp_path):
    """Quickstart's clients take turns in pairs; a whole pair may be hostile. The run goes on, and so does a resumed one."""
    monkeypatch.setattr("fedqssl.runs.finalize.draw", lambda context, folder: [])
    config = tiny(algorithm="fed_qssl_plus", fraction=0.3, rounds=4, **{"server.steps": 1}, images=80)
    uploads(monkeypatch, "fed_qssl_plus", HOSTILE["negative variances"])
    result = start(config, tmp_path / "a", say=silent)
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if "round_rejected" in line]
    assert len(lines) == 4 and 0 < len(kept) < 4
    for line in kept:
        assert set(line["rejected"]) == {ONE} and line["weights"] == {}
        assert line["round_rejected"] == "0 valid updates, fewer than min_clients = 1"
    log = (tmp_path / "a" / "log.txt").read_text()
    assert log.count("was rejected, and the model before it is kept: 0 valid updates") == len(kept)
    real, when = RunFolder.save, kept[0]["round"]

    def save(folder, checkpoint):
        real(folder, checkpoint)
        if checkpoint.rounds_done == when:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save", save)
    with pytest.raises(KeyboardInterrupt):
        start(config, tmp_path / "b", say=silent)
    monkeypatch.setattr(RunFolder, "save", real)
    again = resume(tmp_path / "b", say=silent)
    assert model_bytes(tmp_path / "b") == model_bytes(tmp_path / "a")
    assert {**figures(again), "folder": ""} == {**figures(result), "folder": ""}


def test_a_rejected_round_changes_nothing(monkeypatch):
    context = tiny_context(algorithm="fed_simclr", **TINY)
    uploads(monkeypatch, "fed_simclr", HOSTILE["huge variances"], {"client-00", "client-01", "client-02"})
    first, _ = rounds_of(context, 0)
    after, (line,) = rounds_of(context)
    assert (after.payloads, after.aggregated) == (first.payloads, first.aggregated) and after.rounds_done == 1
    assert len(line["rejected"]) == 3 and line["round_rejected"] and line["bytes_up"] > 0


def test_losses_that_no_reader_accepts_are_left_out(monkeypatch, tmp_path):
    """1e300 passes the wire, and the run's own file could then not be read again."""
    monkeypatch.setattr("fedqssl.runs.finalize.draw", lambda context, folder: [])

    def lie(sent, metrics, job):
        return sent, dataclasses.replace(metrics, losses=(1e300,) * len(metrics.losses))

    spoil(monkeypatch, "fed_simclr", lie)
    start(tiny(algorithm="fed_simclr", rounds=1, images=80), tmp_path / "a", say=silent)
    (line,) = RunFolder.open(tmp_path / "a").lines()
    assert line["rejected"] == {ONE: "its losses are not plausible: one is beyond 1e+18"}


def unchecked(monkeypatch):
    """As if every value were plausible: the second line of defence."""
    monkeypatch.setattr(rounds, "check_values", lambda received, found: None)


@pytest.mark.parametrize("kind", ["negative variances", "huge variances", "huge gains", "NaN from infinities"])
@pytest.mark.parametrize("algorithm", ["fed_simclr", "fed_refine", "fed_distill"])
def test_who_makes_the_aggregate_unusable_is_named(monkeypatch, kind, algorithm):
    """Without the checks of values; FLESD's teacher check names some of them first."""
    unchecked(monkeypatch)
    steps = {"server.dequantize_epochs": 1} if algorithm != "fed_simclr" else {}
    context = tiny_context(algorithm=algorithm, **{**TINY, **steps})
    uploads(monkeypatch, algorithm, HOSTILE[kind])
    after, (line,) = rounds_of(context)
    assert "round_rejected" not in line
    assert set(line["rejected"]) <= {ONE}  # the server's own training may repair what is merely huge
    assert (ONE in line["weights"]) == (not line["rejected"])
    check_usable(
        read_payload(after.aggregated, 32, context.task),
        read_payload(rounds_of(context, 0)[0].aggregated, 32, context.task),
        context.buffer(),
        context.task,
    )


def test_a_server_that_always_diverges_keeps_the_model_and_says_why(monkeypatch):
    def diverges(*arguments):
        raise NonFiniteError("5 steps in a row had gradients that are not finite")

    monkeypatch.setattr("fedqssl.federated.server.operators.fine_tune", diverges)
    context = tiny_context(algorithm="fed_refine", **{**TINY, "server.dequantize_epochs": 1})
    after, (line,) = rounds_of(context)
    assert "5 steps in a row" in line["round_rejected"] and line["rejected"] == {}
    assert after.aggregated == rounds_of(context, 0)[0].aggregated


def test_aggregates_are_checked():
    context = tiny_context(**TINY)
    good = read_payload(rounds_of(context, 0)[0].aggregated, 32, context.task)
    variance = next(n for n in good if n.endswith(".running_var"))
    check_usable(good, good, context.buffer(), context.task)
    for value, why in ((math.nan, "not finite"), (-1.0, "negative variances"), (math.inf, "not finite")):
        with pytest.raises(UnusableAggregateError, match=why):
            check_usable(
                {**good, variance: torch.full_like(good[variance], value)}, good, context.buffer(), context.task
            )
    blind = {n: torch.full_like(x, 1e30) if n.endswith(".running_var") else x for n, x in good.items()}
    with pytest.raises(UnusableAggregateError, match="no difference between"):
        check_usable(blind, good, context.buffer(), context.task)
    check_usable(blind, blind, context.buffer(), context.task)  # no fault of this round


def test_the_fewest_are_left_out():
    """Alone in the order of their changes, then together, never below the least number."""

    @dataclasses.dataclass(frozen=True)
    class Some:
        payloads: dict

    everybody, tried = Some(dict.fromkeys("abcd", b"")), []

    def play(needed):
        def played(some):
            tried.append("".join(some.payloads))
            if needed & set(some.payloads):
                raise UnusableAggregateError("no use")
            return "".join(some.payloads)

        return played

    changes = {"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}.__getitem__
    assert without_culprits(play(set()), everybody, changes, 1) == ("abcd", {}, None)
    after, out, why = without_culprits(play({"c"}), everybody, changes, 1)
    assert (after, set(out), why) == ("abd", {"c"}, None) and out["c"].startswith("no use")
    assert without_culprits(play({"b", "c"}), everybody, changes, 1)[1].keys() == {"b", "c"}
    assert without_culprits(play({"b", "c"}), everybody, changes, 3) == (None, {}, "no use")
    tried.clear()
    assert without_culprits(play(set("abcd")), everybody, changes, 4) == (None, {}, "no use") and tried == ["abcd"]


def test_a_change_is_relative_to_what_was_received():
    received = {"w": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}
    assert change(received, {"w": torch.tensor([3.0, 14.0]), "b": torch.tensor([0.0, 1.0])}) == pytest.approx(2.0)
    assert change(received, {"b": torch.tensor([3.0, 4.0])}) == pytest.approx(5.0)


class Echo:
    """An engine whose clients train nothing: the first returns what it received, the others something hostile."""

    def __init__(self, pool):
        self.pool, self.hostile = pool, 0

    def train_clients(self, payloads, job):
        replies = {}
        for name, payload in payloads.items():
            bits = self.pool.shared.bits[name]
            if self.pool.shared.algorithm.upload is not None:
                model = job.task.converted(bits)
                nothing = {key: torch.zeros_like(x) for key, x in read_state(model).items()}
                payload = encode_update(nothing, bits, torch.Generator(), weight_names(model))
            if name != "client-00":
                payload = random_upload(payload, 1000 * job.round_number + bits)
                self.hostile += 1
            replies[name] = payload, ClientMetrics(10, (1.0,), 0, 0.0)
        return replies, {}


def survive(rounds: int, **words) -> list[dict]:
    """The lines of so many rounds in which two clients of three are hostile and start from what the server sent them."""
    context = tiny_context(images=40, rounds=rounds, **{**IDLE, **words})
    pool = Pool(context)
    engine = Echo(pool)
    after, lines = played(context, engine, pool, rounds)
    assert after.rounds_done == rounds and engine.hostile == 2 * rounds
    assert all(bool(x.isfinite().all()) for x in read_payload(after.aggregated, 32, context.task).values())
    return lines


@pytest.mark.parametrize("algorithm", ["fed_simclr", "fed_paq"])
def test_200_random_uploads_never_end_a_run(algorithm):
    """Fifty rounds of two algorithms."""
    assert sum(len(line["rejected"]) for line in survive(50, algorithm=algorithm)) > 20


STEP = {"server.dequantize_epochs": None, "server.steps": 1}
SERVERS = {
    "average": {"algorithm": "fed_simclr"},
    "updates": {"algorithm": "fed_paq"},
    "trained average": {"algorithm": "fed_refine", **STEP},
    "trimmed": {"algorithm": "fed_qssl_plus", "fraction": 1.0, "aggregation.robust": "trimmed", **STEP},
    "embedding": {"algorithm": "fed_simclr", "aggregation.robust": "embedding", "aggregation.batch_norm": "buffer"},
}


@pytest.mark.slow
@pytest.mark.parametrize("words", SERVERS.values(), ids=list(SERVERS))
def test_2000_random_uploads_never_end_a_run(words):
    """The figure of issue 17: five kinds of servers, 200 rounds each, two hostile uploads in every round."""
    lines = survive(200, **words)
    assert any(line["rejected"] for line in lines) and any(not line.get("round_rejected") for line in lines)
