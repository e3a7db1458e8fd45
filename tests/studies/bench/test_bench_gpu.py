"""``bench step`` and ``bench memory`` on a GPU, as far as that goes without one."""

import pytest
import torch

from fedqssl.quant import kernels
from fedqssl.studies.bench import memory, step
from pretend_gpu import pretend_gpu


def test_what_is_measured_beside_what():
    names = [variant.name for variant in step.candidates((4, 8), peers=False, on_gpu=True)]
    assert names == ["fp32", "fp32-amp", "fedqssl-4", "fedqssl-8"]
    assert "fp32-amp" not in [variant.name for variant in step.candidates((4,), peers=False)]


def test_memory_is_what_torch_gives_out(monkeypatch):
    """The peak of one step after two warm ones, above what is held between steps."""
    held, peak, steps = [100], [0], []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, held[0]))

    def one() -> None:
        steps.append(1)
        peak[0] = max(peak[0], 1000 // len(steps))

    assert memory.allocated_on_gpu(one, torch.device("cuda", 0)) == (100, 333 - 100) and len(steps) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:User provided device_type")
def test_step_on_a_gpu_that_is_not_there(monkeypatch):
    with kernels.use("torch"), pretend_gpu(monkeypatch):
        record = step.run(width=8, images=4, bits=(4,), repeats=1, peers=False, device="cuda")
    assert [row["variant"] for row in record.results] == ["fp32", "fp32-amp", "fedqssl"]
    assert all(row["wall_seconds"] > 0 for row in record.results)
    assert record.settings["gpu"] == "a GPU that is not there" and record.settings["gpu_kernels"] == "torch"
