"""Whole runs at a size of seconds: same bytes with other workers, with other labels."""

import dataclasses
import gc
import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedqssl import accelerators
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.engines.shared_images import SharedImages
from fedqssl.lowbit import load_bytes, to_bytes
from fedqssl.lowbit.container import read_header
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.runs import RunError, RunFolder, RunResult, resume, start
from fedqssl.runs.evaluate import evaluate, global_accuracy
from tiny_run import figures, known_run, model_bytes, rounds_of, silent, tiny, tiny_context


@pytest.fixture
def finished() -> RunResult:
    return known_run()


def test_a_run_leaves_what_it_promises(finished):
    names = {p.name for p in finished.folder.iterdir()}
    assert {"config.toml", "environment.json", "partition.json", "metrics.jsonl", "result.json", "summary.md"} <= names
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert set(lines[0]["weights"]) == {"client-00", "client-01", "client-02"}
    assert abs(sum(lines[0]["weights"].values()) - 1) < 1e-9
    assert figures(RunResult.read(finished.folder)) == figures(finished)


def test_payloads_are_in_each_clients_bits_and_counted_by_their_length(finished):
    context = tiny_context()
    for name, data in model_bytes(finished.folder).items():
        bits = context.bits[name]
        assert read_header(data)["bits"] == str(bits) and finished.clients[name].bits == bits
        load_bytes(context.task.converted(bits), data)
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    last = sum(map(len, model_bytes(finished.folder).values()))
    assert finished.bytes_up == sum(line["bytes_up"] for line in lines)
    assert finished.bytes_down == sum(line["bytes_down"] for line in lines) + last
    assert finished.bytes_up == sum(c.bytes_up for c in finished.clients.values())
    first = sum(len(to_bytes(context.task.converted(b))) for b in context.bits.values())
    assert lines[0]["bytes_down"] == first


def test_existing_folders_are_not_overwritten_and_finished_runs_only_read(finished, tmp_path):
    with pytest.raises(RunError, match="--overwrite"):
        start(tiny(), finished.folder)
    said = []
    assert figures(resume(finished.folder, say=said.append)) == figures(finished) and "finished" in said[0]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    with pytest.raises(RunError, match="not a run"):
        start(tiny(), tmp_path / "photos", overwrite=True)
    with pytest.raises(RunError, match=r"no config\.toml"):
        resume(tmp_path)


class BackwardsPool(Pool):
    """Notes what kinds of jobs there are, and does them in the opposite order."""

    def run(self, what, function, jobs):
        self.seen = {what: list(jobs), **getattr(self, "seen", {})}
        done = super().run(what, function, dict(reversed(jobs.items())))
        return dict(reversed(done.items()))


def test_accuracies_are_jobs_of_the_pool(finished):
    """So that workers judge, where there are any; whichever of them is ready first."""
    context, own = tiny_context(), model_bytes(finished.folder)
    with BackwardsPool(context) as pool:
        found = evaluate(context, pool, {"": RunFolder(finished.folder).latest().aggregated}, own)
    assert pool.seen == {"evaluation": [("global", ""), *(("local", name) for name in own)]}
    assert found == (finished.global_accuracy, {name: c.local_accuracy for name, c in finished.clients.items()})


def test_workers_get_no_second_copy_of_the_images():
    context = tiny_context()
    with SharedImages(context) as shared:
        assert len(shared.pickled) < 2**16 < context.train.images.numel()
        opened = shared.open()
        for mine, theirs in ((context.train, opened.train), (context.test, opened.test)):
            assert torch.equal(mine.images, theirs.images) and torch.equal(mine.labels, theirs.labels)
            assert not theirs.images.untyped_storage().resizable()  # mapped, not allocated


def test_two_workers_give_the_same_bytes_if_there_is_room_for_their_images(finished, tmp_path):
    """If not: one line that says what to do, and nothing left open; with room, the run can be resumed."""
    before = len(os.listdir("/proc/self/fd"))

    def on_a_full_disk(handle: int, mode: str):
        os.close(handle)
        return Path("/dev/full").open(mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedqssl.engines.shared_images.os.fdopen", on_a_full_disk)
        with pytest.raises(RunError, match=r"No space left.*: free some space there, set TMPDIR .* --resume"):
            start(tiny(workers=2), tmp_path / "full", say=silent)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    other = resume(tmp_path / "full", say=silent)
    assert figures(other) == figures(finished) and model_bytes(other.folder) == model_bytes(finished.folder)


def test_without_an_aggregated_model_the_mean_over_the_clients_counts():
    alone = known_run(algorithm="local_only", rounds=1)
    context, models = tiny_context(algorithm="local_only"), model_bytes(alone.folder)
    each = [global_accuracy(context, context.bits[n], models[n]) for n in sorted(models)]
    assert alone.global_accuracy == sum(each) / 3 and len({*each}) > 1
    with BackwardsPool(context) as pool:
        assert evaluate(context, pool, models, {}) == (alone.global_accuracy, {})


def test_labels_change_no_byte_of_pre_training(finished):
    """With the partition fixed: its train/test cut is stratified, so it may look at labels; training may not."""
    context = tiny_context()
    labels = context.train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(9))
    assert not torch.equal(labels[order], labels)
    other = dataclasses.replace(context, train=dataclasses.replace(context.train, labels=labels[order]))
    after, _ = rounds_of(other, finished.rounds)
    assert after.payloads == model_bytes(finished.folder)


def test_a_tampered_checkpoint_is_refused(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished.folder, copy)
    (copy / "result.json").unlink()
    target = sorted(copy.glob("checkpoints/round-00002/model-*.fqssl"))[0]
    target.write_bytes(target.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="was modified"):
        resume(copy)


@pytest.mark.parametrize(
    ("changes", "words"), [({"algorithm": "fed_magic"}, "fed_qssl"), ({"engine": "carrier-pigeon"}, "in_process")]
)
def test_unknown_names_list_what_there_is(changes, words, tmp_path):
    with pytest.raises(RunError, match=words):
        start(tiny(**changes), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_plain_averaging_runs_too_and_gives_other_models(finished):
    other = known_run(algorithm="fed_simclr", rounds=1)
    line = json.loads((other.folder / "metrics.jsonl").read_text())
    samples = {n: c.samples for n, c in other.clients.items()}
    assert all(abs(w - samples[n] / sum(samples.values())) < 1e-12 for n, w in line["weights"].items())
    assert model_bytes(other.folder) != model_bytes(finished.folder)


class OtherMachines(InProcess):
    """Clients whose bytes come from elsewhere."""

    def train_clients(self, payloads, job):
        replies, failed = super().train_clients({n: bytes(p) for n, p in payloads.items()}, job)
        return {n: (bytes(payload), metrics) for n, (payload, metrics) in replies.items()}, failed


@pytest.mark.parametrize(("engine", "times"), [(InProcess, 1), (OtherMachines, 2)])
def test_a_payload_is_hashed_once_where_it_is_made_and_once_where_it_arrives(engine, times, monkeypatch):
    """What a process made itself does not arrive from anywhere."""
    real, hashed = hashlib.sha256, Counter()

    def counting(data=b"", **options):
        if len(data) > 1000:
            hashed[bytes(data)] += 1
        return real(data, **options)

    context = tiny_context(bits=[4, 6, 8])  # at 32 bits a client's first model is the aggregate, made twice
    rounds_of(context, engine_type=engine)  # the length of an honest upload is measured once per run
    monkeypatch.setattr("fedqssl.header.hashlib", SimpleNamespace(sha256=counting))
    rounds_of(context, engine_type=engine)
    assert hashed and max(hashed.values()) == times


def test_a_run_of_a_gpu_is_read_where_there_is_none(tmp_path, monkeypatch):
    """Reports, probes and exports of finished runs compute on the CPU; resuming says what is missing."""
    monkeypatch.setattr(accelerators, "gpus", lambda: 0)
    shutil.copytree(known_run().folder, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('device = "cpu"', 'device = "cuda"'))
    run = FinishedRun.open(tmp_path / "run")
    assert run.config.device == "cuda" and run.context.buffer().device.type == "cpu"
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(accelerators.DeviceError, match=r"^device=cuda, but"):
        resume(tmp_path / "run")
