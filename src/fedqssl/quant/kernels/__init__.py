"""Kernels behind the quantizers and layers: compiled for CPUs (AVX2, NEON, any other), Triton's for GPUs, else plain torch.

The backend is chosen by the tensors' device. ``FEDQSSL_KERNELS=torch`` (or :func:`use`) turns all but plain torch off; ``native``
and ``triton`` are errors where those cannot be used. All backends offer the same functions and agree bit for bit on quantizers
and packing; ``fedqssl doctor`` shows which one runs and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from fedqssl.quant.kernels import gpu, native, reference

_DTYPES = (torch.float32, torch.uint8, torch.uint16, torch.int8)
_CHOICES = ("auto", "native", "torch", "triton")
_CPU = torch.device("cpu")


def _checked(choice: str, called: str) -> str:
    """The choice, if it is one and can be used here."""
    if choice not in _CHOICES:
        raise ValueError(f"{called}{choice!r}: choose one of {', '.join(_CHOICES)}")
    if choice == "native" and not native.available():
        raise ValueError(f"{called}native, but the compiled kernels cannot be used: {native.REASON}")
    if choice == "triton" and gpu.find()[0] is None:
        raise ValueError(f"{called}triton, but {gpu.find()[1]}")
    return choice


_choice = _checked(os.environ.get("FEDQSSL_KERNELS", "auto").strip().lower() or "auto", "FEDQSSL_KERNELS=")


def ops(*tensors: Tensor | None) -> ModuleType:
    """The backend for these tensors, if all are float32 or integers on one device; else plain torch."""
    device = _CPU
    for number, t in enumerate(t for t in tensors if t is not None):
        if t.dtype not in _DTYPES or (number and t.device != device):
            return reference
        device = t.device
    return ops_on(device)


def ops_on(device: torch.device) -> ModuleType:
    """The backend for tensors on this device, for functions that say themselves which types they take."""
    if _choice == "torch":
        return reference
    if device.type == "cuda":
        return gpu.probe(device)[0]
    if device.type != "cpu":
        return reference
    if _choice == "triton" and gpu.interpreting():
        return gpu.find()[0] or reference
    return native if native.available() else reference


def backend_name() -> str:
    """``native``, ``torch`` or, in its interpreter, ``triton``: what CPU tensors run on."""
    return str(ops().NAME)


@contextmanager
def use(choice: str) -> Iterator[None]:
    """Choose the backend for a block of code: ``auto``, ``native``, ``torch`` or ``triton``."""
    global _choice
    before, _choice = _choice, _checked(choice, "kernels ")
    try:
        yield
    finally:
        _choice = before


def describe() -> dict[str, object]:
    """The active backend and why: for ``fedqssl doctor`` and for the settings of a benchmark."""
    from fedqssl.quant.kernels import intconv

    return {
        "backend": backend_name(),
        "choice": _choice,
        "native_available": native.available(),
        "native_detail": native.REASON,
        "integer_convolution": intconv.available(),
        "integer_convolution_detail": intconv.detail(),
        "integer_convolution_8_bits": intconv.wide_detail(),
    }


__all__ = ["backend_name", "describe", "native", "ops", "ops_on", "reference", "use"]
