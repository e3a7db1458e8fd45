"""An update on the wire: ``x_after - x_before`` of every weight, stochastically rounded to s bits, packed, checksummed.

The container is the model's (``fedqssl.lowbit.container``): mark, version, length, SHA-256, then safetensors with
``<name>.codes`` (packed, uint8) and ``<name>.scale``. A weight's grid is uniform over [-m, m], m its largest entry; rounding is
stochastic and so unbiased everywhere (Assumption 1). Batch norm and biases travel as floats, as in every model
(PAPER-TO-CODE, section 7); at 32 bits everything does.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import safetensors.torch
import torch
from safetensors import SafetensorError

from fedqssl.federated.state import State, read_state, weight_names
from fedqssl.federated.task import Task
from fedqssl.lowbit.container import MAX_BYTES, ContainerError, check_bytes, frame
from fedqssl.quant import uniform_quantize
from fedqssl.quant.packing import pack, packed_size, unpack

FULL = 32
SLACK = 2
PER_TENSOR = 512
"""A valid update has its packed codes, and for each tensor a scale, a name and a shape, which take far fewer bytes."""


def encode_update(
    update: State, bits: int, generator: torch.Generator, weights: Collection[str] | None = None
) -> bytes:
    """Bytes of an update in this many bits: ``E[decode(encode(d))] = d``; ``weights``: the names to round, by default all."""
    tensors = {}
    shapes = {name: list(x.shape) for name, x in sorted(update.items())}
    for name, x in sorted(update.items()):
        if bits == FULL or (weights is not None and name not in weights):
            tensors[name] = x.float().contiguous()
            continue
        m = x.abs().max() if x.numel() else torch.zeros(())
        unit = x.double() / (2 * m.double()) + 0.5 if float(m) > 0 else torch.full(x.shape, 0.5, dtype=torch.float64)
        q = uniform_quantize(unit, bits, "stochastic", generator)
        tensors[f"{name}.codes"] = pack(q.codes, bits)
        tensors[f"{name}.scale"] = m.float().reshape(1)
    metadata = {"fedqssl": json.dumps({"format": "fedqssl-update", "bits": bits, "shapes": shapes}, sort_keys=True)}
    return frame(safetensors.torch.save(tensors, metadata=metadata))


def _about(blob: bytes) -> tuple[int, dict[str, torch.Size]]:
    """Bits and shapes from the metadata."""
    size = int.from_bytes(blob[:8], "little")
    about = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedqssl"])
    if about["format"] != "fedqssl-update":
        raise ContainerError("these bytes are a model, not an update")
    return int(about["bits"]), {str(name): torch.Size(shape) for name, shape in about["shapes"].items()}


def decode_update(data: bytes, bits: int | None = None, max_bytes: int = MAX_BYTES) -> State:
    """The update as floats.

    Raises:
        ContainerError: if these bytes are not an update, or not one of this many bits.
    """
    return _read(data, bits, max_bytes)[0]


def _read(data: bytes, bits: int | None, max_bytes: int) -> tuple[State, set[str]]:
    """The update as floats, and the names of the codes and scales it holds."""
    blob = check_bytes(data, max_bytes)
    try:
        found, shapes = _about(blob)
        if bits is not None and found != bits:
            raise ContainerError(f"an update in {found} bits, from a client of {bits}")
        tensors = safetensors.torch.load(blob)
        return {name: _decode(tensors, name, shape, found) for name, shape in shapes.items()}, tensors.keys() - shapes
    except ContainerError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, OverflowError) as error:
        raise ContainerError(f"the update cannot be read: {error}") from error


def _decode(tensors: dict[str, torch.Tensor], name: str, shape: torch.Size, bits: int) -> torch.Tensor:
    if f"{name}.codes" not in tensors:
        x = tensors[name]
        if x.shape != shape or x.dtype != torch.float32:
            raise ContainerError(f"'{name}' is {x.dtype} of shape {tuple(x.shape)}, not float32 of {tuple(shape)}")
        return x
    codes, m = tensors[f"{name}.codes"], float(tensors[f"{name}.scale"])
    if codes.numel() != packed_size(shape.numel(), bits) or codes.dtype != torch.uint8:
        raise ContainerError(f"'{name}' has {codes.numel()} bytes of codes, not {packed_size(shape.numel(), bits)}")
    levels = unpack(codes, bits, shape).double() * (2 / (2**bits - 1)) - 1
    values: torch.Tensor = (m * levels).float()
    return values


def check_update(payload: bytes, bits: int, task: Task) -> None:
    """Raise ContainerError unless this is an update of the task's model in this client's bits, finite throughout."""
    model = task.converted(bits)
    wanted, weights = read_state(model), weight_names(model)
    honest = sum(packed_size(x.numel(), bits) if name in weights else 4 * x.numel() for name, x in wanted.items())
    update, parts = _read(payload, bits, SLACK * (honest + PER_TENSOR * len(wanted)))
    if {n: x.shape for n, x in update.items()} != {n: x.shape for n, x in wanted.items()}:
        raise ContainerError("the update is of another architecture")
    if wrong := parts ^ {f"{name}.{part}" for name in weights for part in ("codes", "scale")}:
        raise ContainerError(
            f"the update must hold exactly the model's weights in bits, but '{min(wrong)}' does not fit"
        )
    bad = [name for name, x in update.items() if not bool(torch.isfinite(x).all())]
    if bad:
        raise ContainerError(f"'{bad[0]}' holds values that are not finite")
