"""A low-bit model as bytes: versioned, checksummed, self-describing; the format used on the network and on disk.

Layout: a header (:mod:`fedqssl.header`) with the mark ``b"FQSSL\\0"``, then a safetensors blob: ``<name>.codes`` (packed,
uint8), ``<name>.scale`` (float32), and float tensors. Batch-norm tensors and biases travel as float16 where that keeps 3 digits,
else as float32. The blob's metadata hold the architecture's fingerprint and the precision. Nothing is unpickled; sizes and
checksum are checked before anything is allocated.
"""

from __future__ import annotations

import json
import struct

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedqssl.header import CONTAINER_MARK, Header
from fedqssl.lowbit.policy import Entry, all_finite, fingerprint, state_of
from fedqssl.lowbit.precision import LowBitOptions, Precision
from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.quant.packing import packed_size

MAGIC = CONTAINER_MARK
VERSION = 1
MAX_BYTES = 1 << 30
MAX_DESCRIPTION = 1 << 20
"""Bytes that name the tensors; those of a ResNet-34 take 30 thousand."""


class ContainerError(ValueError):
    """These bytes cannot be loaded into this model; the message says why."""


_HEADER = Header(MAGIC, VERSION, ContainerError, "not a fedqssl model: it does not start with the format's mark")


def _float16_fits(x: Tensor) -> bool:
    half = x.to(torch.float16).to(torch.float32)
    return bool(((half - x).abs() <= x.abs() * 1e-3).all())  # false for overflow, NaN, and values lost to underflow


def _describe(model: nn.Module) -> dict[str, str]:
    made_with = getattr(model, "meta", {}).get("fedqssl")
    if made_with is None:
        raise ContainerError("only a model that to_lowbit returned can be packed or filled")
    precision, options = made_with
    bits = {m.bits for m in model.modules() if isinstance(m, LowBitWeight)} | {precision.weight}
    if len(bits) != 1:
        raise ContainerError(f"the model mixes bitwidths {sorted(bits)}; a container holds one")
    return {
        "format": "fedqssl",
        "fingerprint": fingerprint(model),
        "bits": str(precision.weight),
        "activation_bits": str(precision.activation),
        "gradient_bits": str(precision.gradient),
        "options": options.to_json(),
    }


def to_bytes(model: nn.Module, exact: bool = False) -> bytes:
    """Pack a model from ``to_lowbit``; the same model always gives the same bytes.

    Args:
        model: a model that :func:`to_lowbit` returned, at any precision.
        exact: store all floats in 32 bits; by default float16 is used where it keeps 3 digits.
    """
    tensors: dict[str, Tensor] = {}
    for entry in state_of(model).values():
        if entry.role == "quantized" and entry.weight is not None:
            tensors[f"{entry.name}.codes"] = entry.weight.codes.cpu().contiguous()
            tensors[f"{entry.name}.scale"] = entry.weight.scale.cpu().reshape(1)
        elif entry.role == "quantized":
            tensors[entry.name] = entry.parameters_x().cpu().contiguous()
        elif entry.role == "averaged":
            x = entry.parameters_x().to("cpu", torch.float32).contiguous()
            tensors[entry.name] = x.to(torch.float16) if _float16_fits(x) and not exact else x
    # One metadata entry: safetensors writes several in no fixed order, and equal models must give equal bytes.
    metadata = {"fedqssl": json.dumps(_describe(model), sort_keys=True)}
    return frame(safetensors.torch.save(tensors, metadata=metadata))


def frame(blob: bytes) -> bytes:
    """Put the header in front of a safetensors blob."""
    return _HEADER.wrap(blob)


def check_bytes(data: bytes, max_bytes: int = MAX_BYTES, checked: bool = False) -> bytes:
    """The safetensors blob of a container whose length, version and checksum are right, with a description of sensible size.

    A description is JSON, which takes up to thirty times its length in memory when it is read: its length comes first.
    """
    blob = _HEADER.unwrap(data, max_bytes, checked)
    size = int.from_bytes(blob[:8], "little")
    if size > MAX_DESCRIPTION:
        raise ContainerError(f"a description of {size:,} bytes is more than the {MAX_DESCRIPTION:,} allowed")
    if blob[8:9] != b"{":
        raise ContainerError("the model's description cannot be read")
    return blob


def read_header(data: bytes, max_bytes: int = MAX_BYTES) -> dict[str, str]:
    """The metadata of a container: format, fingerprint, bits, options. Checks everything that :func:`check_bytes` does."""
    return _metadata(check_bytes(data, max_bytes))


def _metadata(blob: bytes) -> dict[str, str]:
    size = struct.unpack_from("<Q", blob)[0] if len(blob) >= 8 else 0
    try:
        metadata = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedqssl"])
        return {str(k): str(v) for k, v in metadata.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContainerError("the model's description cannot be read") from error


def _check_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise ContainerError(f"'{name}' is missing")
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        raise ContainerError(
            f"'{name}' is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtypes[0]} of shape {shape}"
        )
    if tensor.is_floating_point() and not all_finite([tensor])[0]:
        raise ContainerError(f"'{name}' holds values that are not finite")
    return tensor


def _read(entry: Entry, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The validated tensors of one entry."""
    floats = torch.float32, torch.float16
    if entry.weight is not None:
        size = packed_size(entry.shape.numel(), entry.weight.bits)
        codes = _check_tensor(tensors, f"{entry.name}.codes", (size,), torch.uint8)
        scale = _check_tensor(tensors, f"{entry.name}.scale", (1,), torch.float32)
        if not 0 <= float(scale) <= min(entry.weight.compander.limit, torch.finfo(torch.float32).max):
            raise ContainerError(f"'{entry.name}.scale' is {float(scale)}, outside its range")
        return [codes, scale]
    return [_check_tensor(tensors, entry.name, tuple(entry.shape), *floats)]


class Reader:
    """Fills one model, whose tensors nobody else replaces or writes to, with one container after another.

    Args:
        model: from ``to_lowbit``.

    Attributes:
        travelling: the model's tensors that containers hold.
    """

    def __init__(self, model: nn.Module) -> None:
        self.travelling = [e for e in state_of(model).values() if e.role in ("quantized", "averaged")]
        self._wanted = _describe(model)
        self._holds: bytes | None = None

    def load(self, data: bytes, max_bytes: int = MAX_BYTES, checked: bool = False) -> None:
        """As :func:`load_bytes`; a checked container that the model already holds is not read again."""
        if checked and data is self._holds:
            return
        _fill(self.travelling, self._wanted, data, max_bytes, checked)
        self._holds = data


def load_bytes(model: nn.Module, data: bytes, max_bytes: int = MAX_BYTES, checked: bool = False) -> None:
    """Fill ``model`` (from ``to_lowbit``, of the same architecture and bits) from a container; all or nothing.

    Args:
        model: what to fill.
        data: the container.
        max_bytes: a longer container is rejected.
        checked: the checksum was verified when the bytes arrived; everything else is checked again.

    Raises:
        ContainerError: if the bytes are not valid for this model, which is then unchanged.
    """
    Reader(model).load(data, max_bytes, checked)


def _fill(travelling: list[Entry], wanted: dict[str, str], data: bytes, max_bytes: int, checked: bool) -> None:
    blob = check_bytes(data, max_bytes, checked)
    header = _metadata(blob)
    for key, found in wanted.items():
        if header.get(key) != found:
            what = "architecture" if key == "fingerprint" else key.replace("_", " ")
            raise ContainerError(f"{what} {header.get(key)} in the bytes, {found} in the model")
    try:
        tensors = safetensors.torch.load(blob)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ContainerError(f"the tensors cannot be read: {error}") from error
    read = [_read(entry, tensors) for entry in travelling]
    for entry, values in zip(travelling, read, strict=True):
        if entry.weight is not None:
            device = entry.weight.codes.device
            entry.weight.codes = values[0].to(device, copy=True)
            entry.weight.scale = values[1].reshape(()).to(device, copy=True)
        else:
            entry.assign(values[0].to(torch.float32))


def from_bytes(data: bytes, architecture: nn.Module, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The low-bit model in a container.

    Args:
        data: the container.
        architecture: the float module that the model was converted from; its weights do not matter.
        max_bytes: a longer container is rejected.
    """
    from fedqssl.lowbit.convert import to_lowbit

    header = read_header(data, max_bytes)
    try:
        precision = Precision(*(int(header[key]) for key in ("bits", "activation_bits", "gradient_bits")))
        model = to_lowbit(architecture, precision, LowBitOptions.from_json(header["options"]))
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ContainerError(f"the model's description is not valid: {error}") from error
    load_bytes(model, data, max_bytes)
    return model
