"""Kernels behind the quantizers and layers: compiled for CPUs (AVX2, NEON, or any other), plain torch everywhere else.

``FEDQSSL_KERNELS=torch`` (or :func:`use`) turns the compiled ones off. Both backends offer the same functions and agree
bit for bit on quantizers and packing; ``fedqssl doctor`` shows which one runs and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from fedqssl.quant.kernels import native, reference

_NATIVE_DTYPES = (torch.float32, torch.uint8, torch.uint16, torch.int8)
_CHOICES = ("auto", "native", "torch")
_choice = os.environ.get("FEDQSSL_KERNELS", "auto").strip().lower() or "auto"
if _choice not in _CHOICES:
    raise ValueError(f"FEDQSSL_KERNELS={_choice!r}: choose one of {', '.join(_CHOICES)}")
if _choice == "native" and not native.available():
    raise ValueError(f"FEDQSSL_KERNELS=native, but the compiled kernels cannot be used: {native.REASON}")


def ops(*tensors: Tensor | None) -> ModuleType:
    """The backend for these tensors: compiled if all are float32 or integers on the CPU, else plain torch."""
    if _choice == "torch" or not native.available():
        return reference
    fits = all(t is None or (t.device.type == "cpu" and t.dtype in _NATIVE_DTYPES) for t in tensors)
    return native if fits else reference


def ops_on(device: torch.device) -> ModuleType:
    """The backend for tensors on this device, for functions that say themselves which types they take."""
    return ops() if device.type == "cpu" else reference


def backend_name() -> str:
    """``native`` or ``torch``: what CPU tensors run on."""
    return str(ops().NAME)


@contextmanager
def use(choice: str) -> Iterator[None]:
    """Choose the backend for a block of code: ``auto``, ``native`` or ``torch``."""
    global _choice
    if choice not in _CHOICES:
        raise ValueError(f"kernels {choice!r}: choose one of {', '.join(_CHOICES)}")
    if choice == "native" and not native.available():
        raise ValueError(f"the compiled kernels cannot be used: {native.REASON}")
    before, _choice = _choice, choice
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
    }


__all__ = ["backend_name", "describe", "native", "ops", "ops_on", "reference", "use"]
