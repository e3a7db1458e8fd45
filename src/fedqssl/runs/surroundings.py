"""What a run's bytes depend on besides its settings and images: versions, kernels, instruction set, threads."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from fedqssl import __version__
from fedqssl.accelerators import name_of, resolve
from fedqssl.config import RunConfig
from fedqssl.files import printable
from fedqssl.quant import kernels

_WORDS = {
    "fedqssl": "fedqssl",
    "torch": "torch",
    "machine": "machine",
    "instructions": "torch's instruction set",
    "threads": "threads",
    "device": "device",
    "gpu": "GPU",
    "gpu_backend": "kernels of the GPU",
    "backend": "kernels",
    "native_detail": "the kernels' instruction set",
    "integer_convolution_detail": "integer convolution",
    "integer_convolution_8_bits": "convolution at 8 bits",
}
"""What must be equal for equal bytes, as a warning names it; the last four are of the kernels."""


def surroundings(config: RunConfig) -> dict[str, object]:
    """For ``environment.json``."""
    return {
        "fedqssl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": config.threads,
        **_accelerator(config),
        "kernels": kernels.describe(),
    }


def _accelerator(config: RunConfig) -> dict[str, object]:
    """The kind of device, and on a GPU its name and its kernels; nothing of what other machines would call it."""
    device = resolve(config.device)
    if device.type == "cpu":
        return {"device": "cpu"}
    return {"device": device.type, "gpu": name_of(device), "gpu_backend": kernels.ops_on(device).NAME}


_SHOWN = 80
"""Characters of a value that a record may show: it may be somebody else's."""


def changes(noted: object, now: Mapping[str, object]) -> list[str]:
    """What is different from the record of a run, like ``kernels native, now torch``; older records say less."""
    before, after = _flat(noted), _flat(now)
    known = [key for key in _WORDS if key in before and before[key] != after.get(key)]
    if "backend" in known or after.get("backend") != "native":
        known = [key for key in known if key != "native_detail"]  # which only the native kernels have
    return [f"{_WORDS[key]} {printable(str(before[key]))[:_SHOWN]}, now {after.get(key)}" for key in known]


def _flat(values: object) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {}
    inner = values.get("kernels")
    if not isinstance(inner, Mapping):
        return dict(values)
    since = (
        {"integer_convolution_8_bits": "in floats"} if "integer_convolution" in inner else {}
    )  # until it was recorded
    return {**values, **since, **inner}


__all__ = ["changes", "surroundings"]
