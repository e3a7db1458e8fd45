"""The ledger of a whole run: sums over clients, rounds and server; sizes; the estimate of time."""

import json
from dataclasses import replace

import pytest
import torch

from fedqssl.config import load_config
from fedqssl.cost import Sizes, client_sizes, estimate, ledger, sizes_of
from fedqssl.cost.ledger import makespan, round_work
from fedqssl.federated.algorithms import ALGORITHMS, Algorithm
from fedqssl.federated.algorithms.work import RoundWork
from fedqssl.federated.context import make_task
from fedqssl.federated.task import batches
from fedqssl.lowbit import to_bytes

SIZES = Sizes({"client-00": 40, "client-01": 100}, buffer=70)


def config(*words: str):
    return load_config("smoke", ["model=small_cnn", "width=4", "bits=4,8", *words])


@pytest.fixture(scope="module")
def small():
    return ledger(config("rounds=3", "local_epochs=2"), SIZES, measure_seconds=0.5)


def test_clients(small):
    first, second = small.clients["client-00"], small.clients["client-01"]
    assert (first.bits, first.batch, first.steps) == (4, 32, 1 * 2)  # 40 images: one full batch of 32 an epoch
    assert (second.bits, second.batch, second.steps) == (8, 32, 3 * 2)
    assert first.operations == small.bitwidths[4].operations(32) * 2
    assert first.bytes_up == first.bytes_down == len(to_bytes(make_task(config(), 3, 10).converted(4)))
    assert first.rounds == 3


def test_against_full_precision(small):
    for name, client in small.clients.items():
        full = small.full[name]
        assert full.bits == 32 and full.steps == client.steps
        assert client.operations.total < full.operations.total / 3
        assert client.memory.total < full.memory.total / 3
        assert full.bytes_up == small.bitwidths[32].wire.total
    # The paper's Figure 1: backward costs more than forward, and relatively more in few bits
    ratio = {b: w.operations(32).backward / w.operations(32).forward for b, w in small.bitwidths.items()}
    assert ratio[4] > ratio[8] > ratio[32] > 1


def test_a_client_smaller_than_a_batch():
    found = ledger(config(), Sizes({"a": 10, "b": 64}, 40))
    assert (found.clients["a"].batch, found.clients["a"].steps) == (10, 1)
    assert found.clients["a"].memory.activations < found.clients["b"].memory.activations


@pytest.mark.parametrize("images", [1, 5, 8, 20, 24])
def test_batches_are_counted_as_they_are_cut(images):
    task = make_task(config("batch_size=8"), 3, 10)
    cut = batches(images, 8, torch.Generator())
    assert len(cut) == task.steps(images) and {len(batch) for batch in cut} == {task.batch(images)}


def test_totals(small):
    once, total = small.per_round(), small.total()
    assert once.bytes_up == sum(c.bytes_up for c in small.clients.values())
    assert once.operations.total == sum(c.operations.total for c in small.clients.values())
    assert total.bytes_down == 4 * once.bytes_down  # three rounds, and the models handed out at the end
    assert total.operations.forward == 3 * once.operations.forward and total.bytes_up == 3 * once.bytes_up


@pytest.mark.parametrize("name", ["fed_qssl", "fed_paq"])
def test_bytes_are_those_of_a_run(tmp_path, name):
    """FedPAQ's clients send updates, a buffer of another length than their model's."""
    import fedqssl

    words = {"model": "small_cnn", "width": 4, "images": 200, "rounds": 2, "workers": 1, "algorithm": name}
    run = fedqssl.run("smoke", **words, out=tmp_path / "run")
    found = ledger(load_config("smoke", words)).total()
    assert found.bytes_down == pytest.approx(run.bytes_down, rel=0.03)  # trained batch norms may need 32-bit floats
    assert found.bytes_up == pytest.approx(run.bytes_up, rel=0.03 if name == "fed_qssl" else 0.002)


def test_a_fraction_of_the_clients():
    found = ledger(config("fraction=0.5"), SIZES)
    assert found.work.participants == 1 and found.clients["client-00"].rounds == 1.0
    both = sum(c.bytes_up for c in found.clients.values())
    assert found.per_round().bytes_up == both / 2 == found.server.bytes_in


def test_server_work(small):
    step = {b: w.operations(32).total for b, w in small.bitwidths.items()}
    assert small.server.dequantize == 2 * 2 * step[32]  # two models, 70 images: two steps
    assert small.server.requantize == {4: 2 * step[4], 8: 2 * step[8]}
    assert small.server.aggregate == 2 * 1024 * (small.server.aggregate // 2048)
    assert small.server.train == 0


def test_passes_of_teachers_are_in_their_own_bits(small):
    """One view of each of the buffer's 70 images through a 4-bit and an 8-bit model; a step of 35 images has as many views."""
    found = ledger(config("algorithm=fed_distill", "server.steps=11"), SIZES, measure_seconds=0.2)
    widths = found.bitwidths
    assert found.server.passes == widths[4].operations(35).forward + widths[8].operations(35).forward
    assert found.server.train == 11 * widths[32].operations(32).total and found.server.dequantize == 0
    assert found.server.total == found.server.passes + found.server.train + found.server.aggregate
    refined = ledger(config("algorithm=fed_refine", "server.steps=11"), SIZES, measure_seconds=0.2)
    assert refined.server.passes == small.server.passes == 0
    alone = replace(found, work=replace(found.work, passes=0))
    longer = estimate(found, cores=1).server_phase - estimate(alone, cores=1).server_phase
    assert longer == pytest.approx(sum(widths[b].training_seconds(70, 2) for b in (4, 8)) / 6)
    half = ledger(config("algorithm=fed_distill", "fraction=0.5"), SIZES)
    assert half.server.passes == round(found.server.passes / 2)


def test_one_requantization_per_distinct_bitwidth():
    found = ledger(config("bits=4,4"), SIZES)
    assert list(found.server.requantize) == [4]


def test_no_dequantization_epochs_is_one_forward_pass():
    found = ledger(config("server.dequantize_epochs=0", "server.requantize_epochs=0"), SIZES)
    step = found.bitwidths[32].operations(32)
    assert found.server.dequantize == 2 * (2 * step.forward + 2 * step.objective // 3)
    assert sum(found.server.requantize.values()) == 0


def test_steps_count_alike_for_clients_and_server():
    """As many steps as the epochs have cost the same, and each of two models gets half of the server's."""
    epochs = ledger(config("server.dequantize_epochs=3"), Sizes({"client-00": 40, "client-01": 40}, buffer=70))
    steps = ledger(config("local_steps=1", "server.steps=12"), Sizes({"client-00": 40, "client-01": 40}, buffer=70))
    assert steps.clients == epochs.clients and steps.server == epochs.server
    more = ledger(config("local_steps=5"), SIZES).clients["client-00"]
    assert more.steps == 5 and more.operations == epochs.bitwidths[4].operations(32) * 5


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["algorithm=fed_qssl"], 2 + 2),  # de-quantization and re-quantization: an epoch of two steps each
        (["algorithm=fed_qssl", "bits=32,32"], 2),
        (["algorithm=fed_qssl", "server.steps=11"], 5 + 2),  # half of them for each of two models
        (["algorithm=fed_simclr"], 0),
        (["algorithm=fed_refine"], 2 * 2),
        (["algorithm=fed_refine", "server.steps=11"], 11),
        (["algorithm=fed_distill", "server.steps=11"], 11),
        (["algorithm=server_only"], 2 * 2 + 2),
        (["algorithm=server_only", "server.steps=11"], 11 + 2),
        (["algorithm=central"], 4 + 2),  # 140 images
        (["algorithm=central", "local_steps=7"], 2 * 7 + 2),
    ],
)
def test_steps_of_the_server_that_follow_each_other(words, steps):
    assert ledger(config(*words), SIZES).server.steps == steps


@pytest.mark.parametrize(
    ("algorithm", "trains", "traffic", "server"),
    [
        ("fed_qssl", True, True, {"dequantize_epochs": 2, "requantize_epochs": 1}),
        ("fed_simclr", True, True, {"dequantize_epochs": None, "averages": True}),
        ("fed_refine", True, True, {"buffer_epochs": 2 * 4, "requantize_epochs": 0, "averages": True}),
        ("local_only", True, False, {"averages": False}),
        ("server_only", False, False, {"buffer_epochs": 2 * 4}),
        ("central", False, False, {"union_epochs": 1}),
        ("untrained", False, False, {"requantize_epochs": 0}),
    ],
)
def test_work_of_algorithms(algorithm, trains, traffic, server):
    work = round_work(load_config("smoke", [f"algorithm={algorithm}", "server.dequantize_epochs=2"]), 4)
    assert (work.clients_train, work.traffic) == (trains, traffic)
    assert {key: getattr(work, key) for key in server} == server


def test_a_fraction_is_rounded_up_but_not_by_its_last_digit():
    assert load_config("smoke", ["clients=100", "bits=4", "fraction=0.07"]).participants(100) == 7
    assert load_config("smoke", ["fraction=0.3"]).participants(4) == 2


def test_the_server_alone_does_no_more_than_it_is_told():
    work = round_work(load_config("smoke", ["algorithm=server_only", "server.dequantize_epochs=0"]), 4)
    assert work.buffer_epochs == 0


@pytest.mark.parametrize(("algorithm", "keeps"), [("fed_prox", "proximal"), ("fed_paq", "update")])
def test_who_needs_what_was_received_keeps_a_copy(algorithm, keeps):
    found = ledger(config(f"algorithm={algorithm}"), SIZES)
    assert (found.bitwidths[4].rule, found.bitwidths[4].keeps) == ("stored", keeps)
    memory = found.clients["client-00"].memory
    assert 0 < memory.optimizer <= memory.weights
    latent = ledger(config(f"algorithm={algorithm}", "lowbit.rule=latent"), SIZES)
    assert (latent.bitwidths[4].rule, latent.bitwidths[4].keeps) == ("latent", keeps)
    more = latent.clients["client-00"].memory.optimizer - memory.optimizer
    assert more == 4 * sum(weight.count for weight in latent.bitwidths[4].trace.weights)
    alone = ledger(config("algorithm=fed_avg"), SIZES)
    assert alone.bitwidths[4].keeps == "" and alone.clients["client-00"].memory.optimizer == 0
    measured = ledger(config(f"algorithm={algorithm}"), SIZES, measure_seconds=0.2).check(4).measured.optimizer
    frame = found.bitwidths[4].wire.frame if keeps == "update" else 0  # kept as the container that came
    assert memory.optimizer + frame == pytest.approx(measured, rel=0.1)


def test_a_target_network_is_held_and_passed_through():
    """A second copy of the model in the client's bits, one more pass of the views; none where nothing is trained."""
    words = "server.dequantize_epochs=0", "objective=byol"
    found, plain = ledger(config(*words), SIZES, measure_seconds=0.2), ledger(config("objective=simsiam"), SIZES)
    for bits in (4, 8, 32):
        memory, one = found.bitwidths[bits].memory(32), found.bitwidths[bits].operations(32)
        assert memory.optimizer == memory.weights > plain.bitwidths[bits].memory(32).weights  # a wider predictor
        assert one.forward == 2 * found.bitwidths[bits].forward(64) and one.backward > one.forward / 2
        check = found.check(bits)
        assert check.formula.optimizer == pytest.approx(check.measured.optimizer, rel=0.02)
        assert check.formula.activations == pytest.approx(check.measured.activations, rel=0.05)
    step = found.bitwidths[32]
    assert found.server.dequantize == 2 * 2 * step.forward(64) and step.operations(32).objective == 0
    assert plain.clients["client-00"].memory.optimizer == 0


def test_the_algorithm_says_what_is_trained_and_sent(monkeypatch):
    """One that the ledger has never heard of, with a loss, an upload and work of its own."""
    own = Algorithm(
        "own",
        "Own",
        "for this test",
        ALGORITHMS["fed_avg"].server,
        upload=lambda model, bits: b"x" * (100 * bits),
        objective="supervised",
        work=lambda config, participants: RoundWork(participants, buffer_epochs=5),
        keeps="update",
    )
    monkeypatch.setitem(ALGORITHMS, "own", own)
    found = ledger(config("algorithm=own"), SIZES)
    assert found.clients["client-00"].bytes_up == 400 and found.full["client-00"].bytes_up == 3200
    assert found.clients["client-00"].bytes_down == found.bitwidths[4].wire.total
    assert found.server.train == 5 * 2 * found.bitwidths[32].operations(32).total  # 70 images: two steps
    assert found.bitwidths[4].trace.outputs == 10 and found.bitwidths[4].keeps == "update"
    assert found.clients["client-00"].operations.objective == 0


def test_formula_stands_beside_measurement(small):
    for bits in (4, 8, 32):
        check = small.check(bits)
        assert check.images >= 10
        for name, size in check.measured.parts().items():
            assert check.formula.parts()[name] == pytest.approx(size, rel=0.05), (bits, name)
        assert check.packed_formula == check.packed_measured
    assert ledger(config(), SIZES).check(4) is None


def test_json(small, tmp_path):
    path = tmp_path / "new" / "ledger.json"
    small.write(path)
    data = json.loads(path.read_text())
    assert data["clients"]["client-00"]["operations"]["forward"] == small.clients["client-00"].operations.forward
    assert data["clients"]["client-01"]["memory"]["total"] == small.clients["client-01"].memory.total
    assert data["bitwidths"]["4"]["wire"]["total"] == small.bitwidths[4].wire.total
    assert data["bitwidths"]["8"]["step"]["seconds"] > 0
    assert data["total_full"]["operations"]["backward"] > data["total"]["operations"]["backward"]
    assert data["server"]["requantize"].keys() == {"4", "8"}


def test_estimate(small):
    found = estimate(small, cores=2)
    step = {b: w.measured.seconds(32) for b, w in small.bitwidths.items()}
    assert found.clients == pytest.approx({"client-00": 2 * step[4], "client-01": 6 * step[8]})
    assert found.client_phase == pytest.approx(max(found.clients.values()))
    assert found.server_phase == pytest.approx(2 * step[32] + 2 * max(step[4], step[8]))
    assert found.total == pytest.approx(3 * found.round) and found.workers == 2
    assert estimate(small, cores=1).workers == 1
    with pytest.raises(ValueError, match="measure_seconds"):
        estimate(ledger(config(), SIZES))


def test_makespan():
    assert makespan([3, 1, 2, 2], workers=2) == 4
    assert makespan([3, 1, 2, 2], workers=1) == 8
    assert makespan([], workers=2) == 0


def test_sizes_are_those_of_the_run():
    from fedqssl.federated.context import build_simulation

    settings = load_config("smoke", ["images=300"])
    context = build_simulation(settings)
    found = client_sizes(settings)
    assert found == sizes_of(context.partition, (3, 32, 32)) and not found.assumed
    assert found.buffer == 30 and sum(found.clients.values()) < 270


def test_cifar_that_is_not_there_is_assumed(monkeypatch, tmp_path):
    monkeypatch.setattr("fedqssl.cost.sizes.cache_folder", lambda: tmp_path)
    found = client_sizes(load_config("cifar10-paper"))
    assert set(found.clients.values()) == {3600} and found.buffer == 5000 and len(found.clients) == 10
    assert "50,000 images assumed, split evenly" in found.note and "dirichlet" in found.note
    assert client_sizes(load_config("cifar100-paper", ["images=1000"])).classes == 100
    with pytest.raises(ValueError, match="natural groups"):
        client_sizes(load_config("cifar10-paper", ["partition=natural"]))
    with pytest.raises(ValueError, match="fewer clients"):
        client_sizes(load_config("cifar10-paper", ["images=5", "clients=10", "bits=4"]))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    ledger(config(), SIZES, measure_seconds=0.1)
    assert torch.equal(before, torch.get_rng_state())
