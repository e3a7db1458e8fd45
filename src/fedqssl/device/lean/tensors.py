"""Manifest and containers of a device file as plain values and numpy arrays, checked as the runtime with torch checks them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedqssl.device.framing import DeviceFileError, parts, separated
from fedqssl.header import CONTAINER_MARK, Header

Array = npt.NDArray[Any]

NEEDS_TORCH = "; install torch to load this file"
MAX_DESCRIPTION = 1 << 20
_CONTAINER = Header(CONTAINER_MARK, 1, DeviceFileError, "not a fedqssl model: it does not start with the format's mark")
_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U8": np.dtype("u1")}
_RANGES = (".low", ".high")


@dataclass(frozen=True)
class LeanManifest:
    """What the runtime without torch reads of a manifest; see :class:`fedqssl.device.format.Manifest`."""

    model: str
    width: int
    channels: int
    size: int
    objective: str
    bits: int
    feature_dim: int
    class_names: tuple[str, ...]
    client: str
    protocol: str
    card: Mapping[str, Any]
    scale: float = 1.0
    features: str = "pooled"
    contrast: str = "as_is"

    @property
    def supervised(self) -> bool:
        """Whether the model ends in the classifier that it was trained with."""
        return self.objective == "supervised"


def _whole(low: int, high: int) -> Any:
    return lambda v: type(v) is int and low <= v <= high


def _text(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 1000


_VALID: dict[str, Any] = {
    "model": _text,
    "width": _whole(1, 1 << 31),
    "channels": lambda v: v in (1, 3),
    "size": _whole(1, 4096),
    "normalisation": lambda v: v == "value / 255",
    "objective": _text,
    "bits": _whole(1, 32),
    "scale": lambda v: type(v) in (int, float) and 0 < v < math.inf,
    "features": lambda v: v in ("pooled", "grid2", "stages", "pyramid"),
    "contrast": lambda v: v in ("as_is", "stretch"),
    "feature_dim": _whole(1, 1 << 31),
    "class_names": lambda v: isinstance(v, list) and bool(v) and all(map(_text, v)),
    "protocol": _text,
    "client": _text,
    "card": lambda v: isinstance(v, dict),
    "extractor_bytes": _whole(1, 1 << 31),
    "classifier_bytes": _whole(0, 1 << 31),
}
_OPTIONAL = {"normalisation", "scale", "features", "contrast"}


def decode(data: bytes) -> tuple[LeanManifest, bytes, bytes]:
    """Manifest, extractor and classifier of a device file.

    Raises:
        DeviceFileError: one line that says why these bytes cannot be used.
    """
    text, models = separated(data)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeviceFileError("the manifest cannot be read; export the model again") from error
    if not isinstance(values, dict):
        raise DeviceFileError("the manifest cannot be read; export the model again")
    wrong = [key for key, valid in _VALID.items() if not (valid(values[key]) if key in values else key in _OPTIONAL)]
    wrong += [key for key in values if key not in _VALID]
    if wrong:
        raise DeviceFileError(f"{wrong[0]} in the manifest is not valid; export the model again")
    lengths = values.pop("extractor_bytes"), values.pop("classifier_bytes")
    values.pop("normalisation", None)
    manifest = LeanManifest(**{**values, "class_names": tuple(values["class_names"])})
    return manifest, *parts(models, *lengths)


class Container:
    """The tensors of a low-bit model by name; every one is asked for once, with the shape that it must have."""

    def __init__(self, data: bytes, bits: int) -> None:
        blob = _CONTAINER.unwrap(data, len(data))
        size = int.from_bytes(blob[:8], "little")
        if size > MAX_DESCRIPTION:
            raise DeviceFileError(f"a description of {size:,} bytes is more than the {MAX_DESCRIPTION:,} allowed")
        try:
            entries = json.loads(blob[8 : 8 + size])
            described = json.loads(entries.pop("__metadata__")["fedqssl"])
            self.options: dict[str, Any] = json.loads(described["options"])
            self._fingerprint, found = described["fingerprint"], int(described["bits"])
            self._tensors = {name: _tensor(blob[8 + size :], entry) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DeviceFileError("the model's description cannot be read") from error
        if found != bits:
            raise DeviceFileError(f"bits {found} in the bytes, {bits} in the model")
        self.bits = bits
        self._lines: list[str] = []

    def _take(self, name: str, shape: tuple[int, ...], *kinds: str) -> Array:
        if name not in self._tensors:
            raise DeviceFileError(f"'{name}' is missing")
        tensor = self._tensors.pop(name)
        if tensor.shape != shape or tensor.dtype not in [_TYPES[kind] for kind in kinds]:
            raise DeviceFileError(
                f"'{name}' is {tensor.dtype} of shape {tensor.shape}, not {kinds[0]} of shape {shape}"
            )
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise DeviceFileError(f"'{name}' holds values that are not finite")
        return tensor

    def floats(self, name: str, shape: tuple[int, ...]) -> Array:
        """A float tensor, as float32."""
        if not name.endswith(_RANGES):
            self._lines.append(f"{name} averaged {shape}")
        return self._take(name, shape, "F32", "F16").astype(np.float32)

    def codes(self, name: str, shape: tuple[int, ...]) -> tuple[Array, float]:
        """A weight's packed codes and its scale."""
        self._lines.append(f"{name} quantized {shape}")
        size = (math.prod(shape) * self.bits + 7) // 8
        packed, scale = self._take(f"{name}.codes", (size,), "U8"), float(self._take(f"{name}.scale", (1,), "F32")[0])
        limit = 1 - 2.0**-20 if self.options.get("compander") == "tanh" else float(np.finfo(np.float32).max)
        if not 0 <= scale <= limit:
            raise DeviceFileError(f"'{name}.scale' is {scale}, outside its range")
        return packed, scale

    def range_name(self) -> str:
        """The name of the only activation range."""
        found = [name.removesuffix(".low") for name in self._tensors if name.endswith(".low")]
        if len(found) != 1:
            raise DeviceFileError(f"{len(found)} activation ranges, not 1")
        return str(found[0])

    def check_complete(self) -> None:
        """Everything was asked for, and the architecture is the one that the file was made from."""
        if self._tensors:
            raise DeviceFileError(f"'{min(self._tensors)}' is not part of this model")
        found = hashlib.sha256("\n".join(sorted(self._lines)).encode()).hexdigest()[:16]
        if found != self._fingerprint:
            raise DeviceFileError(f"architecture {self._fingerprint} in the bytes, {found} in the model")


def _tensor(blob: bytes, entry: Any) -> Array:
    """A tensor of a safetensors blob: type, shape, and where its bytes begin and end."""
    kind, shape, (start, end) = _TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    sizes = (*shape, start, end)
    if not all(type(v) is int and v >= 0 for v in sizes) or end > len(blob):
        raise ValueError("a tensor lies outside the file")
    if end - start != math.prod(shape) * kind.itemsize:
        raise ValueError("a tensor's length does not fit its shape")
    return np.frombuffer(blob[start:end], kind).reshape(shape)


__all__ = ["NEEDS_TORCH", "Array", "Container", "LeanManifest", "decode"]
