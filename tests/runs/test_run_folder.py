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
