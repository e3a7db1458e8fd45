"""The compiled CPU kernels as a C library, through ctypes: which variant this CPU runs, and its functions.

Nothing but ctypes is needed here: :mod:`fedqssl.quant.kernels.native` gives the functions torch's tensors, :mod:`fedqssl.lean`
numpy's arrays. The sources are ``quant/kernels/native*``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "quant" / "kernels"
_ABI = 6
_REINSTALL = "built from another version; reinstall fedqssl"


class NormActArgs(ctypes.Structure):
    """Arguments of ``norm_act``; see ``native_norm.h``."""

    _fields_ = (
        ("y", c_void_p),
        ("rows", c_int64),
        ("channels", c_int64),
        ("hat_mul", c_void_p),
        ("hat_add", c_void_p),
        ("mul", c_void_p),
        ("add", c_void_p),
        ("res_codes", c_void_p),
        ("res_values", c_void_p),
        ("res_step", c_float),
        ("bits", c_int),
        ("scale", c_float),
        ("step", c_float),
        ("hat_bits", c_int),
        ("hat_step", c_float),
        ("codes8", c_void_p),
        ("packed", c_void_p),
        ("mask", c_void_p),
        ("hat_packed", c_void_p),
        ("values", c_void_p),
        ("threads", c_int),
    )


_SIZES = ("N", "H", "W", "C", "O", "KH", "KW", "OH", "OW")
_STEPS = ("stride_h", "stride_w", "pad_h", "pad_w", "dil_h", "dil_w")


class BitConvArgs(ctypes.Structure):
    """Arguments of ``bit_conv2d``; see ``native_bits.h``."""

    _fields_ = (
        ("x", c_void_p),
        ("w", c_void_p),
        ("out", c_void_p),
        *((name, c_int64) for name in _SIZES + _STEPS),
        ("m", c_int),
        ("k", c_int),
        ("scale", c_float),
        ("threads", c_int),
    )


class ConvArgs(ctypes.Structure):
    """Arguments of ``conv2d``; see ``native_conv.h``."""

    _fields_ = (
        ("x", c_void_p),
        ("factors", c_void_p),
        ("out", c_void_p),
        *((name, c_int64) for name in _SIZES + _STEPS[:4]),
        ("bits", c_int),
        ("scale", c_float),
        ("threads", c_int),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pack": (None, (c_void_p, c_int64, c_int, c_void_p, c_int)),
    "unpack": (None, (c_void_p, c_int64, c_int, c_void_p, c_int)),
    "quantize_pack": (None, (c_void_p, c_int64, c_int, c_float, c_void_p, c_int)),
    "unpack_affine": (None, (c_void_p, c_int64, c_int, c_float, c_float, c_void_p, c_int)),
    "unpack_table": (None, (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_int)),
    "key_histogram": (None, (c_void_p, c_int64, c_void_p, c_void_p, c_int)),
    "quantile_table": (
        c_int,
        (c_void_p, c_int64, c_int, c_int, c_float, c_float, c_void_p, c_void_p, c_void_p),
    ),
    "mean_table": (
        c_int,
        (c_void_p, c_int64, c_int, c_int, c_float, c_float, c_void_p, c_void_p, c_void_p),
    ),
    "table_apply": (None, (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_int)),
    "code_apply": (None, (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_int)),
    "norm_stats": (None, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int)),
    "norm_act": (None, (c_void_p,)),
    "norm_backward_sums": (
        None,
        (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int, c_float, c_void_p, c_void_p, c_void_p, c_int),
    ),
    "norm_backward_apply": (
        None,
        (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int, c_float, *[c_void_p] * 6, c_int),
    ),
    "bit_dot": (c_int64, (c_void_p, c_void_p, c_int64, c_int, c_int)),
    "bit_conv2d": (None, (c_void_p,)),
    "step_target": (
        None,
        (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_int, c_void_p, c_double, c_void_p, c_int),
    ),
    "conv_bytes": (c_int64, (c_int64, c_int64, c_int)),
    "conv_prepare": (None, (c_void_p, c_int64, c_int64, c_int64, c_int, c_void_p)),
    "conv2d": (None, (c_void_p,)),
    "odd_sums": (None, (c_void_p, c_int64, c_int64, c_int64, c_float, c_float, c_void_p, c_int)),
    "round_pack": (None, (c_void_p, c_int64, c_int, c_double, c_double, c_void_p, c_void_p, c_int)),
}


@dataclass(frozen=True)
class Library:
    """The functions of one variant, by name, and all variants that this CPU runs, best first."""

    variant: str
    functions: dict[str, Callable[..., Any]]
    variants: tuple[str, ...]


def load(variant: str | None = None, path: Path | None = None) -> tuple[Library | None, str]:
    """The kernels of this CPU, or of a variant that it also runs, and that variant's name; or None and the reason.

    Args:
        variant: ``avx512``, ``avx2``, ``neon_dot``, ``neon`` or ``portable``; by default what ``FEDQSSL_VARIANT`` says, else the
            best one.
        path: the library; by default what the installation built.
    """
    found = [path] if path is not None else [*FOLDER.glob("_native.so"), *sorted(FOLDER.glob("_native.*.so"))]
    # Older builds have the ABI tag of Python in their name; they come last, so that they never hide a new build.
    if not found:
        return None, "not built (no C++ compiler at install time?)"
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        hint = "; install libgomp1" if "libgomp" in str(error) else ""
        return None, f"does not load: {error}{hint}"
    if library.fq_abi_version() != _ABI:
        return None, _REINSTALL
    library.fq_variants.restype = ctypes.c_char_p
    variants = tuple(filter(None, library.fq_variants().decode().split(",")))
    if not variants:
        return None, "this CPU is big-endian, or computes with more digits than float32 has"
    chosen = variant or os.environ.get("FEDQSSL_VARIANT", "").strip().lower() or variants[0]
    if chosen not in variants:
        return None, f"this CPU runs {', '.join(variants)}, not {chosen}"
    functions = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"fq_{chosen}_{name}", None)
        if function is None:
            return None, _REINSTALL
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return Library(chosen, functions, variants), chosen


__all__ = ["BitConvArgs", "ConvArgs", "Library", "NormActArgs", "load"]
