"""Which processor a run computes on: from the setting ``device`` to torch's device, and what a machine has.

``cpu`` is the default everywhere, and its bytes are those of every run before the setting existed. ``auto`` takes a CUDA GPU if
torch finds one, and the CPU otherwise. Randomness is drawn on the CPU and moved, so that a GPU sees the same batches and views.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WORDS = "auto, cpu, cuda, cuda:N or mps"
_PATTERN = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
VISIBLE = "CUDA_VISIBLE_DEVICES"
UNTRIED = (
    "written and checked without a GPU (Triton's interpreter, PTX for sm_80 and sm_90); not yet run on real hardware"
)
"""What nobody has seen yet; ``fedqssl doctor`` says it."""


class DeviceError(ValueError):
    """This machine has no such device, or training cannot run on it; the message says what to do."""


def check_name(name: str) -> str:
    """The name of a device if it is one, in lower case.

    Raises:
        ValueError: says what is allowed.
    """
    found = name.strip().lower()
    if not _PATTERN.fullmatch(found):
        raise ValueError(f"takes {WORDS}; not {name!r}")
    return found


def gpus() -> int:
    """CUDA GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve(name: str) -> torch.device:
    """Torch's device for a setting, ready for use.

    Raises:
        DeviceError: one line that says what to do.
    """
    import torch

    name, count = check_name(name), gpus()
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if name == "mps":
        raise DeviceError("device=mps: low-bit training needs float64, which torch's MPS lacks; use device=cpu")
    if not count:
        raise DeviceError(f"device={name}, but {_why_none()}; or use device=cpu")
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        raise DeviceError(f"device={name}, but there are {count} GPUs, from cuda:0 on; fedqssl doctor lists them")
    _prepare(index)
    return torch.device("cuda", index)


def _why_none() -> str:
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a CUDA build (pytorch.org/get-started)"
    if os.environ.get(VISIBLE) == "":
        return f"{VISIBLE} is empty: unset it"
    return "torch finds no CUDA GPU: check nvidia-smi and the driver"


def _prepare(index: int) -> None:
    """The same bytes for the same seed on the same GPU; no TF32 but where it is exact (``quant.kernels.tensorcores``).

    It becomes the current one: pinned memory would otherwise take hundreds of MB of GPU 0 for a context there.
    """
    import torch

    torch.cuda.set_device(index)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads unwritten memory


def workers(name: str, on_cpu: int, per_gpu: int) -> int:
    """Worker processes of a run: ``on_cpu`` of them, or ``per_gpu`` for each GPU that it may use."""
    device = resolve(name)
    if device.type == "cpu":
        return on_cpu
    return per_gpu * (1 if ":" in check_name(name) else gpus())


def environments(name: str) -> list[dict[str, str]]:
    """What workers find in their environment, in turn: one GPU each if the setting leaves the choice open."""
    device, count = resolve(name), gpus()
    if device.type != "cuda" or ":" in check_name(name) or count < 2:
        return []
    given = os.environ.get(VISIBLE, "").strip()
    ids = [part.strip() for part in given.split(",")] if given else [str(i) for i in range(count)]
    return [{VISIBLE: one} for one in ids[:count]]


def name_of(device: torch.device) -> str | None:
    """The GPU's name; None for the CPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def describe() -> dict[str, Any]:
    """For ``fedqssl doctor``: GPUs with their memory, what ``auto`` takes, and what has not been tried."""
    import torch

    found = {}
    for index in range(gpus()):
        about = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{about.name}, {about.total_memory / 2**30:.1f} GiB, sm_{about.major}{about.minor}"
    return {"gpus": found or "none", "auto": "cuda" if found else "cpu", "gpu_code": UNTRIED}


def put(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device; through pinned memory, so that the copy does not hold up the host.

    Torch keeps a pinned block until the copies that read it are done, so nobody has to wait for the stream here.
    """
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was given: for clocks."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seeded(device: torch.device) -> list[torch.device]:
    """The devices, besides the CPU, whose global generators ``torch.random.fork_rng`` has to save."""
    return [device] if device.type == "cuda" else []


__all__ = [
    "UNTRIED",
    "DeviceError",
    "check_name",
    "describe",
    "environments",
    "gpus",
    "name_of",
    "put",
    "resolve",
    "seeded",
    "synchronize",
    "workers",
]
