"""What a run's folder keeps: totals, the server's state, and metrics of the rounds that count."""

import json

import pytest
import torch

from fedqssl.federated.server_state import equal
from fedqssl.runs.folder import Checkpoint, RunError, RunFolder, RunTotals


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", overwrite=False)


def test_totals_by_hand():
    """Sent is what goes down to a client, received what comes up from it."""
    one = RunTotals().plus({"a": b"123", "b": b"1"}, {"a": b"12"}, 1.5, 0.25)
    two = one.plus({"a": b"1234"}, {"a": b"1", "c": b"12345"}, 2.0, 0.5)
    assert one == RunTotals({"a": 2}, {"a": 3, "b": 1}, 1.5, 0.25)
    assert two == RunTotals({"a": 3, "c": 5}, {"a": 7, "b": 1}, 3.5, 0.75)


def test_the_servers_state_is_in_the_checkpoint(folder):
    state = {"momentum/m/a.weight": torch.tensor([0.1, -2.0]), "steps": 3}
    folder.save(Checkpoint(1, {"a": b"x"}, b"whole", RunTotals(), state))
    assert equal(folder.latest().server_state, state)
    file = folder.checkpoints / "round-00001" / "server-state.fqssl"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    with pytest.raises(RunError, match=r"server-state\.fqssl was modified"):
        folder.latest()


def test_the_newest_checkpoint_is_the_one_to_resume_from(folder):
    for number in (9, 10):
        folder.save(Checkpoint(number, {"a": bytes([number])}, None, RunTotals()))
    assert folder.latest().rounds_done == 10 and folder.latest().payloads == {"a": bytes([10])}


def test_lines_of_rounds_without_a_checkpoint_are_dropped(folder):
    """So is the last line of a killed run, which may be cut off; that of the checkpoint's own round stays."""
    for number in (1, 2, 3):
        folder.append_metrics({"round": number, "loss": float("nan")})
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "lo')
    folder.cut_metrics(2)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [
        {"round": 1, "loss": None},
        {"round": 2, "loss": None},
    ]
    folder.cut_metrics(0)
    assert folder.metrics.read_text() == ""


def test_lines_before_a_checkpoint_may_not_change(folder):
    """As its models may not: accuracies of earlier rounds are results, too."""
    folder.append_metrics({"round": 1, "knn": 0.25})
    folder.save(Checkpoint(1, {"a": b"x"}, None, RunTotals()))
    folder.append_metrics({"round": 2, "knn": 0.5})  # of a round that was not saved
    assert folder.latest().rounds_done == 1
    folder.metrics.write_text(folder.metrics.read_text().replace("0.25", "0.95"))
    with pytest.raises(RunError, match=r"metrics\.jsonl was modified; restore it, or delete it"):
        folder.latest()
    folder.metrics.unlink()
    assert folder.latest().rounds_done == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"round": 1, "knn": "high"}\n', '{"round": true}\n', '{"round": 1, "weights": 3}\n', "1\n"]
)
def test_lines_of_other_programs_end_in_one_line(folder, text):
    folder.metrics.write_text(text)
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be read"):
        folder.lines()


@pytest.mark.parametrize(
    ("key", "value"),
    [("rounds_done", "1"), ("models", {"a": "../../config.toml"}), ("sha256", {"/etc/hosts": ""}), ("totals", [])],
)
def test_a_checkpoint_of_wrong_types_ends_in_one_line(folder, key, value):
    """Also one with a digest of its own: whoever writes the values can compute it."""
    folder.save(Checkpoint(1, {"a": b"x"}, None, RunTotals()))
    path = folder.checkpoints / "round-00001" / "state.json"
    values = {**json.loads(path.read_text()), key: value}
    del values["digest"]
    path.write_text(json.dumps(values))
    with pytest.raises(RunError, match="cannot be read"):
        folder.latest()
