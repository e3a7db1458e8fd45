"""Controls stand beside every accuracy of a run, and a sentence says whether the run was worth it."""

import json

import pytest
import torch

from fedqssl.engines.pool import Pool
from fedqssl.evaluation.controls import measure_controls
from fedqssl.federated.server import settle
from fedqssl.federated.state import read_payload, read_state, weight_names
from fedqssl.runs import RunResult, controls, lifecycle, resume, start
from fedqssl.runs.controls import run_controls, steps_taken, untrained_knn
from fedqssl.runs.evaluate import global_accuracy
from tiny_run import rounds_of, silent, tiny, tiny_context


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunResult:
    return start(tiny(rounds=1, **{"evaluation.controls": "all"}), tmp_path_factory.mktemp("c") / "run", say=silent)


def test_they_are_in_the_result_the_summary_and_the_table(finished):
    kept = json.loads((finished.folder / "result.json").read_text())
    assert sorted(kept["controls"]) == ["chance", "commonest", "hog", "pixels", "untrained"]
    assert kept["clients"]["client-00"]["controls"].keys() == kept["controls"].keys()
    assert RunResult.read(finished.folder) == finished
    page = (finished.folder / "summary.md").read_text()
    assert finished.verdict() in page and "| logistic regression on raw pixels |" in page
    client = finished.clients["client-01"]
    assert f"| {client.untrained()} | {client.control()} |" in page and client.untrained().endswith("%")
    assert "mean local accuracy of" in finished.verdict()
    assert finished.local_controls()["hog"] == pytest.approx(
        sum(c.controls["hog"] for c in finished.clients.values()) / len(finished.clients)
    )
    assert finished.table().caption == finished.verdict()


def test_they_see_what_the_clients_see(finished):
    context = tiny_context(rounds=1)
    split, images, labels = context.partition.clients["client-01"], context.train.images, context.train.labels
    own = measure_controls(images[split.train], labels[split.train], images[split.test], labels[split.test], 10)
    assert {**finished.clients["client-01"].controls, "untrained": 0} == {**own.to_json(), "untrained": 0}
    everyone = measure_controls(images, labels, context.test.images, context.test.labels, 10)
    assert {**finished.controls, "untrained": 0} == {**everyone.to_json(), "untrained": 0}


def test_the_untrained_network_is_the_control_of_that_name(finished):
    context = tiny_context(rounds=1, algorithm="untrained")
    after, _ = rounds_of(context)
    assert finished.controls["untrained"] == pytest.approx(global_accuracy(context, 32, after.aggregated), abs=0.02)


def test_a_clients_untrained_network_has_its_bits_and_its_kind_of_classifier(monkeypatch):
    """What is judged is what the algorithm ``untrained`` hands out, in the way the client itself is judged."""
    context, judged = tiny_context(images=80, **{"evaluation.controls": "all"}), {}
    real = controls.client_accuracy
    monkeypatch.setattr(
        controls, "client_accuracy", lambda c, name, model: judged.update({name: model}) or real(c, name, model)
    )
    with Pool(context) as pool:
        _, found = run_controls(context, pool)
    handed, _ = rounds_of(tiny_context(images=80, algorithm="untrained"))
    for name, bits in context.bits.items():
        ours, theirs = (read_payload(p[name], bits, context.task) for p in (judged, handed.payloads))
        weights = weight_names(context.task.converted(bits)) or ours.keys() - {k for k in ours if "running" in k}
        assert weights and all(torch.equal(ours[k], theirs[k]) for k in weights)
        assert found[name]["untrained"] == real(context, name, judged[name])


def test_ten_even_batches_settle_as_a_hundred_do():
    context = tiny_context(images=160)
    first = read_state(context.task.converted(32))
    usual, few = (settle(first, context.buffer(), context.task, evenly) for evenly in (None, 10))
    changed = [n for n in first if not torch.equal(first[n], usual[n])]
    assert changed and all("running" in n for n in changed)
    for name in changed:
        assert torch.allclose(few[name], usual[name], rtol=0.3, atol=0.05), name


def test_the_verdict_knows_the_steps_and_what_knn_says(finished):
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert finished.knn_gain == lines[-1]["knn"] - lines[-1]["untrained_knn"]
    assert finished.steps == steps_taken(tiny_context(rounds=1))


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        ("fed_qssl", 2 * (3 * 2 + 5)),
        ("fed_simclr", 12),
        ("server_only", 2 * 5 * 3),
        ("central", 2 * 3 * 7),
        ("untrained", 0),
    ],
)
def test_steps_one_after_the_other_by_hand(algorithm, steps):
    """Three clients of 38 images or so (2 steps of 16), a buffer of 16 (1 step), 3 local epochs, 5 on the buffer, 2 rounds."""
    changes = {"algorithm": algorithm, "images": 160, "buffer_ratio": 0.1, "local_epochs": 3}
    context = tiny_context(**changes, **{"server.dequantize_epochs": 5})
    assert set(context.sizes.values()) <= {38, 39, 40} and len(context.buffer()) == 16
    assert steps_taken(context) == steps


@pytest.mark.parametrize(("algorithm", "steps"), [("fed_qssl", 2 * (7 + 4)), ("fed_refine", 2 * (7 + 12))])
def test_steps_that_were_asked_for_are_counted(algorithm, steps):
    assert steps_taken(tiny_context(algorithm=algorithm, **{"local_steps": 7, "server.steps": 12})) == steps


def played_lines(tmp_path, monkeypatch, values, stop=None, **changes):
    """Runs with these kNN accuracies (the first is the untrained network's), interrupted before round ``stop`` and resumed."""
    said, measured = [], iter(values)
    for place in ("controls", "round"):
        monkeypatch.setattr(f"fedqssl.runs.{place}.knn_monitor", lambda context, model: next(measured))
    real = lifecycle.play_round

    def play(context, engine, pool, before, number, *more):
        if number == stop and not said[-1].startswith("resuming"):
            raise KeyboardInterrupt
        return real(context, engine, pool, before, number, *more)

    monkeypatch.setattr(lifecycle, "play_round", play)
    monkeypatch.setattr(lifecycle, "finalize", lambda *given: None)
    config = tiny(images=80, **{"rounds": 4, "algorithm": "fed_simclr", "evaluation.controls": "all", **changes})
    if stop is None:
        start(config, tmp_path / "run", say=said.append)
    else:
        with pytest.raises(KeyboardInterrupt):
            start(config, tmp_path / "run", say=said.append)
        resume(tmp_path / "run", say=said.append)
    assert next(measured, None) is None
    return said, [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stop", [None, 1, 3])
def test_knn_that_falls_below_the_untrained_networks_warns_once(tmp_path, monkeypatch, stop):
    """Also in a run that is resumed, which does not measure the untrained network again."""
    said, lines = played_lines(tmp_path, monkeypatch, [0.3, 0.35, 0.2, 0.1, 0.2], stop)
    warned = [i for i, line in enumerate(said) if "below the untrained network's" in line]
    assert len(warned) == 1 and said[warned[0]].startswith("warning: kNN accuracy, 20.0%,")
    assert said[warned[0] - 1].startswith("round 2/4") and "kNN 20.0% (untrained 30.0%)" in said[warned[0] - 1]
    assert [line["untrained_knn"] for line in lines] == [0.3] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation.knn_every": 0},
        {"evaluation.controls": "none"},
        {"algorithm": "fed_avg"},
        {"algorithm": "untrained"},
    ],
)
def test_the_untrained_network_is_not_measured_where_nothing_is_compared(monkeypatch, changes):
    monkeypatch.setattr(controls, "settle", lambda *given: pytest.fail("measured"))
    assert untrained_knn(tiny_context(**{"evaluation.knn_every": 1, "evaluation.controls": "all", **changes})) is None


def test_none_where_nothing_can_be_measured_or_nothing_is_asked():
    context = tiny_context()
    assert context.config.evaluation.controls == "none"
    with Pool(context) as pool:
        assert run_controls(context, pool) == (None, {})


def test_a_result_from_before_has_none(finished, tmp_path):
    kept = json.loads((finished.folder / "result.json").read_text())
    for name in ("controls", "steps", "knn_gain"):
        del kept[name]
    for client in kept["clients"].values():
        del client["controls"]
    (tmp_path / "result.json").write_text(json.dumps(kept))
    old = RunResult.read(tmp_path)
    assert old.controls is None and old.verdict() == "" and old.clients["client-00"].control() == "-"
