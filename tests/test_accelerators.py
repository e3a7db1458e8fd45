"""The setting ``device``: names, what a machine without a GPU says, and how several GPUs are shared."""

import os
from types import SimpleNamespace

import pytest
import torch

from fedqssl import accelerators
from fedqssl.accelerators import DeviceError, check_name, environments, resolve, workers
from fedqssl.cli import doctor
from fedqssl.config import ConfigError, load_config
from fedqssl.config.load import load_run_config
from fedqssl.engines import pool as pools
from fedqssl.federated.protocol import protocol
from fedqssl.quant.kernels import gpu, ops_on, reference, use
from fedqssl.runs.surroundings import changes, surroundings
from tiny_run import tiny


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(accelerators, "gpus", lambda: 2)
    monkeypatch.setattr(accelerators, "_prepare", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.delenv(accelerators.VISIBLE, raising=False)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(accelerators, "gpus", lambda: 0)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps", " CUDA "])
def test_names(name):
    assert load_config("smoke", {"device": name}).device == check_name(name) == name.strip().lower()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "0"])
def test_other_names_say_what_is_allowed(name):
    with pytest.raises(ConfigError, match="device takes auto, cpu, cuda, cuda:N or mps; not"):
        load_config("smoke", {"device": name})


def test_the_default_is_the_cpu_and_no_digest_changes(tmp_path):
    """Runs from before the setting have no ``device`` in their file: they resume on the CPU, under the same digest."""
    assert load_config("smoke").device == "cpu"
    assert protocol(tiny()) == protocol(tiny(device="cuda", workers_per_gpu=3, client_gpus=0.5))
    (tmp_path / "config.toml").write_text("rounds = 3\n")
    assert load_run_config(tmp_path).device == "cpu"


def test_without_a_gpu(no_gpu, monkeypatch):
    assert (
        resolve("cpu").type == resolve("auto").type == "cpu" and workers("auto", 3, 5) == 3 and not environments("auto")
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        DeviceError, match=r"^device=cuda, but torch .* is built without CUDA: install .*; or use device=cpu$"
    ):
        resolve("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(DeviceError, match="finds no CUDA GPU: check nvidia-smi and the driver; or use device=cpu"):
        resolve("cuda:1")
    monkeypatch.setenv(accelerators.VISIBLE, "")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES is empty: unset it"):
        resolve("cuda")
    with pytest.raises(DeviceError, match="float64, which torch's MPS lacks; use device=cpu"):
        resolve("mps")


def test_several_gpus_are_shared(two_gpus, monkeypatch):
    assert resolve("auto") == resolve("cuda") == torch.device("cuda", 0) and resolve("cuda:1").index == 1
    with pytest.raises(DeviceError, match="there are 2 GPUs, from cuda:0 on"):
        resolve("cuda:2")
    assert workers("cuda", 8, 3) == 6 and workers("cuda:1", 8, 3) == 3 and workers("cpu", 8, 3) == 8
    assert environments("cuda") == [{accelerators.VISIBLE: "0"}, {accelerators.VISIBLE: "1"}]
    assert environments("cuda:1") == environments("cpu") == []
    monkeypatch.setenv(accelerators.VISIBLE, "GPU-a, 5")
    assert environments("auto") == [{accelerators.VISIBLE: "GPU-a"}, {accelerators.VISIBLE: "5"}]


def test_the_gpu_becomes_the_current_one(monkeypatch):
    """Pinned memory belongs to the current GPU: without this, a run on cuda:1 would hold memory of cuda:0, too."""
    chosen = []
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    flags = [(x, name, getattr(x, name)) for x, name in FLAGS]
    monkeypatch.setattr(accelerators, "gpus", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    try:
        assert resolve("cuda:1").index == 1 and chosen == [1]
        assert [getattr(x, name) for x, name in FLAGS] == [False, True, False, False, False]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        for x, name, value in flags:
            setattr(x, name, value)


FLAGS = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
)


def test_workers_take_turns_on_gpus(monkeypatch):
    """A worker that replaces a dead one gets the GPU that was left."""
    monkeypatch.setattr(pools, "_Worker", lambda shared, threads, environment: SimpleNamespace(environment=environment))
    both = [{"X": "0"}, {"X": "1"}]
    pool = pools.Pool(None, 4, environments=both)
    pool._opened = object()
    found = [pool._hire() for _ in range(4)]
    assert [w.environment["X"] for w in found] == ["0", "1", "0", "1"]
    pool._running.remove(found[1])
    assert pool._hire().environment == {"X": "1"}
    assert pools.Pool(None).environments == ({},)


def test_a_run_notes_its_device(two_gpus, monkeypatch):
    monkeypatch.setattr(gpu, "probe", lambda device: (reference, "not probed here"))
    before = surroundings(tiny())
    assert before["device"] == "cpu" and "gpu" not in before
    now = surroundings(tiny(device="auto"))
    assert (now["device"], now["gpu"], now["gpu_backend"]) == ("cuda", "Some GPU", "torch")
    assert changes(before, now) == ["device cpu, now cuda"]
    assert changes(now, {**now, "gpu": "Another GPU"}) == ["GPU Some GPU, now Another GPU"]
    old = {name: value for name, value in before.items() if name != "device"}
    assert changes(old, now) == []  # an older record does not say, and its settings say cpu


def test_doctor_says_what_is_there_and_what_nobody_has_tried(no_gpu, monkeypatch):
    facts = doctor.collect()
    assert facts["device"]["gpus"] == "none" and facts["device"]["auto"] == "cpu"
    assert "not yet run on real hardware" in facts["device"]["gpu_code"]
    assert not any("device=cuda" in line for line in facts["advice"]) and "gpu" not in facts["extras"]


def test_doctor_with_gpus(two_gpus, monkeypatch):
    about = SimpleNamespace(name="Some GPU", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    monkeypatch.setattr(gpu, "find", lambda: (None, "triton is not there"))
    facts = doctor.collect()
    assert facts["device"]["gpus"] == {f"cuda:{i}": "Some GPU, 80.0 GiB, sm_90" for i in range(2)}
    assert "plain torch: triton is not there; TF32 sums of codes: not exact" in facts["device"]["cuda:1_kernels"]
    assert any("not yet run on real hardware" in line for line in facts["advice"]) and "gpu" in facts["extras"]


def test_kernels_of_a_gpu_that_fails_its_probe(monkeypatch):
    """Plain torch takes over, and the reason is kept."""
    gpu.probe.cache_clear()
    monkeypatch.setattr(gpu, "find", lambda: (SimpleNamespace(NAME="triton"), "triton 9"))
    try:
        backend, why = gpu.probe(torch.device("cuda", 7))
        assert backend is reference and why.startswith("plain torch: triton 9 failed on cuda:7 (")
        monkeypatch.setattr(gpu, "disagreements", lambda backend, device: ["norms"])
        backend, why = gpu.probe(torch.device("cuda", 6))
        assert backend is reference and "gives other results on cuda:6 (norms)" in why
        monkeypatch.setattr(gpu, "disagreements", lambda backend, device: [])
        with use("auto"):
            assert ops_on(torch.device("cuda", 5)).NAME == "triton"
        with use("torch"):
            assert ops_on(torch.device("cuda", 5)) is reference
    finally:
        gpu.probe.cache_clear()


def test_a_wrong_kernel_is_noticed():
    """The probe's own comparison, with plain torch in the place of a GPU's kernels."""
    cpu = torch.device("cpu")
    assert gpu.disagreements(reference, cpu) == []
    wrong = SimpleNamespace(**vars(reference))
    wrong.unpack_affine = lambda *args: reference.unpack_affine(*args) + 1e-3
    assert gpu.disagreements(wrong, cpu) == ["codes"]


def test_asking_for_triton_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(gpu, "find", lambda: (None, "triton is not installed (pip install 'fedqssl[gpu]')"))
    with pytest.raises(ValueError, match=r"kernels triton, but triton is not installed \(pip install"), use("triton"):
        pass


def test_the_environment_is_left_alone(no_gpu):
    before = dict(os.environ)
    resolve("auto")
    assert os.environ == before
