"""Clusters: who belongs together, and that each cluster is a federation of its own."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from fedqssl.config import ConfigError
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.algorithms import get_algorithm
from fedqssl.federated.finish import full_precision
from fedqssl.federated.optimizers import clusters, configured_server
from fedqssl.federated.optimizers.clusters import clusters_of, models_of
from fedqssl.federated.optimizers.signatures import k_means, signature
from fedqssl.federated.server.aggregate import average
from fedqssl.federated.server_state import equal
from fedqssl.federated.state import read_payload
from fedqssl.lowbit import to_bytes
from fedqssl.runs import resume, start
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.round import play_round
from tiny_run import figures, model_bytes, played, rounds_of, silent, stopped_after, tiny, tiny_context

FOUR = {"clients": 4, "bits": [4, 4, 8, 8], "algorithm": "fed_simclr", "local_epochs": "none", "local_steps": 1}
"""client-00 and client-02 are of one kind, client-01 and client-03 of another, where a test says so."""


def told(monkeypatch, **kinds):
    """Signatures that a test makes up, by client: the last letter of ``client_0`` is its number."""
    of = {f"client-{int(name[-2:]):02d}": torch.tensor([float(x)]) for name, x in kinds.items()}
    monkeypatch.setattr(clusters, "_signature", lambda algorithm, name, arrived, operators: of[name])
    return of


@pytest.fixture
def two_kinds(monkeypatch):
    return told(monkeypatch, c_00=0, c_01=10, c_02=1, c_03=11)


def test_signature_by_hand():
    """After 3 steps with momentum 0.1, 0.729 of the received variance is left."""
    measured = torch.tensor([4.0, math.e**2, 0.0])
    received = {"a.running_var": torch.ones(3), "a.running_mean": torch.zeros(3), "a.weight": torch.ones(2, 2)}
    arrived = 0.271 * measured + 0.729 * received["a.running_var"]
    model = {
        **received,
        "a.running_var": arrived,
        "a.running_mean": torch.full((3,), 9.0),
        "a.weight": torch.zeros(2, 2),
    }
    found = signature(received, model, 3, 0.1)
    assert torch.allclose(found[:2], torch.tensor([math.log(2), 1.0], dtype=torch.float64), atol=1e-5)
    assert float(found[2]) < -4  # a channel that is always 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_k_means_finds_what_is_apart(count):
    places = {"a": 0.0, "b": 10.0, "c": 0.5, "d": 10.4, "e": 30.0}
    found = k_means({n: torch.tensor([x, 1.0]) for n, x in places.items()}, count)
    together = {1: ["abcde"], 2: ["abcd", "e"], 3: ["ac", "bd", "e"]}[count]
    assert ["".join(n for n in found if found[n] == c) for c in range(count)] == together


def test_k_means_of_equal_signatures_is_one_cluster():
    assert set(k_means({n: torch.ones(3) for n in "abc"}, 2).values()) == {0}


def test_every_cluster_is_averaged_alone(two_kinds):
    class Noting(InProcess):
        def train_clients(self, payloads, job):
            replies, failed = super().train_clients(payloads, job)
            seen.append((dict(payloads), {n: upload for n, (upload, _) in replies.items()}))
            return replies, failed

    seen, context = [], tiny_context(**FOUR, clusters=2, rounds=3)
    checkpoint, lines = rounds_of(context, 2, Noting)
    assert [line["clusters"] for line in lines] == [dict(zip(sorted(context.bits), (0, 1, 0, 1), strict=True))] * 2
    assert lines[0]["cluster_distances"]["client-01"] == [9.5, 0.5] and lines[1]["cluster_distances"] == {}
    assert checkpoint.aggregated is None
    sent, uploads = seen[1]
    for c, members in enumerate((["client-00", "client-02"], ["client-01", "client-03"])):
        shares = {n: context.sizes[n] / sum(context.sizes[m] for m in members) for n in members}
        w = average({n: read_payload(uploads[n], context.bits[n], context.task) for n in members}, shares)
        assert models_of(checkpoint.server_state)[c] == to_bytes(full_precision(context.task, w))
    assert sent["client-00"] != sent["client-01"]  # of 4 bits both
    assert checkpoint.payloads["client-02"] != checkpoint.payloads["client-03"]


def test_states_of_clusters_are_their_own(two_kinds):
    """Momentum of one cluster is that of a run of its clients alone, which have the other's neither in moments nor in models."""
    momentum = {"server.optimizer": "momentum", "server.momentum": 0.5}
    context = tiny_context(**FOUR, **momentum, clusters=2, rounds=9)
    checkpoint, _ = rounds_of(context, 2)
    for c, members in enumerate((["client-00", "client-02"], ["client-01", "client-03"])):
        alone = dataclasses.replace(context, bits={n: context.bits[n] for n in members})
        alone = dataclasses.replace(alone, config=context.config.model_copy(update={"clusters": 1}))
        expected, _ = rounds_of(alone, 2)
        prefix = f"clusters/in/{c}/"
        state = {n.removeprefix(prefix): x for n, x in checkpoint.server_state.items() if n.startswith(prefix)}
        assert state and equal(state, expected.server_state)
        assert models_of(checkpoint.server_state)[c] == expected.aggregated


def test_one_cluster_with_all_clients_is_the_algorithm(monkeypatch):
    """If all are alike, one of two clusters stays empty, and the other is a run without clusters."""
    told(monkeypatch, c_00=1, c_01=1, c_02=1, c_03=1)
    one, _ = rounds_of(tiny_context(**FOUR, rounds=3), 2)
    two, lines = rounds_of(tiny_context(**FOUR, rounds=3, clusters=2), 2)
    assert set(lines[1]["clusters"].values()) == {0}
    assert two.payloads == one.payloads and models_of(two.server_state) == {0: one.aggregated}


def test_newcomers_join_the_nearest_cluster(two_kinds):
    """Two clients in a round: the first two make the clusters, the others train the initial model, then join."""
    turns = {**FOUR, "algorithm": "fed_seq", "fraction": 0.5, "clusters": 2}
    context = tiny_context(**turns, rounds=9)
    first, lines = rounds_of(context, 1)
    begun = sorted(lines[0]["clusters"])
    late = sorted(context.bits.keys() - begun)
    second, (_, line) = rounds_of(context, 2)
    assert sorted(line["clusters"]) == late and line["weights"] == {}
    assert models_of(second.server_state) == models_of(first.server_state)  # what they learned from w_0 is not averaged
    initial = {n: to_bytes(context.task.converted(context.bits[n])) for n in context.bits}
    assert all(first.payloads[n] == initial[n] for n in late)
    assert all(second.payloads[n] != initial[n] for n in context.bits)
    if len(set(lines[0]["clusters"].values())) == 2:
        assert clusters_of(second.server_state)["client-00"] in (0, 1)


def test_those_that_never_took_part_get_the_largest_cluster(two_kinds):
    context = tiny_context(**{**FOUR, "fraction": 0.75}, clusters=2, rounds=1)
    checkpoint, (line,) = rounds_of(context, 1)
    (absent,) = context.bits.keys() - line["clusters"].keys()
    found = clusters_of(checkpoint.server_state)
    sizes = [list(line["clusters"].values()).count(c) for c in (0, 1)]
    assert found[absent] == sizes.index(max(sizes))
    same = next(n for n in line["clusters"] if context.bits[n] == context.bits[absent])
    assert checkpoint.payloads[absent] != to_bytes(context.task.converted(context.bits[absent]))
    assert (checkpoint.payloads[absent] == checkpoint.payloads[same]) == (found[absent] == found[same])


def test_a_client_whose_images_change_moves(monkeypatch):
    of = told(monkeypatch, c_00=0, c_01=10, c_02=1, c_03=11)
    context = tiny_context(**FOUR, clusters=2, clusters_check=1, rounds=9)
    with Pool(context) as pool:
        engine = InProcess(pool)
        checkpoint, _ = played(context, engine, pool, 2)
        initial = {n: to_bytes(context.task.converted(context.bits[n])) for n in context.bits}
        assert checkpoint.payloads == initial  # all are due to be looked at again
        of["client-02"] = torch.tensor([12.0])
        checkpoint, line = play_round(context, engine, pool, checkpoint, 2)
    assert line["clusters"] == {"client-00": 0, "client-01": 1, "client-02": 1, "client-03": 1}
    assert checkpoint.payloads["client-02"] == checkpoint.payloads["client-03"] != initial["client-02"]


def test_a_checkpoint_holds_all_that_the_next_round_needs(two_kinds, tmp_path):
    context = tiny_context(**FOUR, clusters=2, rounds=3, **{"server.optimizer": "momentum", "server.ema": 0.5})
    folder = RunFolder.create(tmp_path / "run", overwrite=False)
    with Pool(context) as pool:
        engine = InProcess(pool)
        kept, _ = played(context, engine, pool, 2)
        folder.save(kept)
        (whole, _), (parts, _) = (play_round(context, engine, pool, c, 2) for c in (kept, folder.latest()))
    assert any("momentum" in name for name in kept.server_state)
    assert equal(whole.server_state, parts.server_state) and whole.payloads == parts.payloads


def arrays(path, clients=4, each=24):
    """Images of two kinds: fine noise for even clients, one colour with some noise for odd ones."""
    draws = np.random.default_rng(0)
    names = np.array([f"client-{i:02d}" for i in range(clients) for _ in range(each)])
    images = draws.uniform(0, 255, (len(names), 3, 32, 32))
    flat = draws.uniform(0, 255, (len(names), 3, 1, 1)) + draws.normal(0, 6, images.shape)
    odd = np.array([int(n[-2:]) % 2 == 1 for n in names])
    images[odd] = flat[odd].clip(0, 255)
    labels = draws.integers(0, 2, len(names))
    for split in ("train", "test"):
        np.savez(path / f"{split}.npz", images=images.astype(np.uint8), labels=labels, clients=names)
    return {"data": f"arrays:{path}", "partition": "natural", "images": "none"}


def test_kinds_are_found_whatever_the_bits_and_resumed(tmp_path):
    config = tiny(**{**FOUR, "local_steps": 6, **arrays(tmp_path)}, clusters=2, rounds=2)
    whole = start(config, tmp_path / "whole", say=silent)
    kinds = {name: int(name[-2:]) % 2 for name in whole.clients}
    assert RunFolder(whole.folder).lines()[0]["clusters"] == kinds
    assert {name: c.cluster for name, c in whole.clients.items()} == kinds
    assert whole.global_accuracy is not None
    assert "\nCluster 1: client-01, client-03.\n" in (whole.folder / "summary.md").read_text()
    with stopped_after(1):
        start(config, tmp_path / "parts", say=silent)
    parts = resume(tmp_path / "parts", say=silent)
    assert figures(parts) == figures(whole) and model_bytes(parts.folder) == model_bytes(whole.folder)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "local_only"}, "averages no clients' models"),
        ({"fraction": 0.25}, "needs as many clients in a round, not 1"),
    ],
)
def test_what_has_no_clusters_is_refused(settings, words):
    config = tiny(**{**FOUR, **settings}, clusters=2)
    with pytest.raises(ConfigError, match=words):
        configured_server(get_algorithm(config.algorithm), config)


def test_the_server_works_once_for_every_cluster():
    steps = {"server.dequantize_epochs": "none", "server.steps": 10, "server.requantize_epochs": 2}
    one, two = (get_algorithm("fed_qssl").round_work(tiny(**{**FOUR, **steps}, clusters=k), 4) for k in (1, 2))
    assert two == dataclasses.replace(
        one, dequantize_steps=2 * one.dequantize_steps, requantize_epochs=2 * one.requantize_epochs
    )
    assert one.dequantize_steps > 0 and one.requantize_epochs == 2
