"""What a server remembers from round to round besides the aggregated model: a flat dictionary of tensors and numbers.

It is passed into a round and returned by it (``server(state, arrived, operators) -> (state, round)``), saved in every
checkpoint, and restored bit for bit. Keys of an optimiser or average that wraps an algorithm begin with its name and a slash.
"""

from __future__ import annotations

import json

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedqssl.lowbit.container import ContainerError, check_bytes, frame

ServerState = dict[str, Tensor | int | float]


def state_to_bytes(state: ServerState) -> bytes:
    """The state in the container of models: mark, version, length, SHA-256, then safetensors with the numbers as metadata."""
    tensors = {name: x.contiguous() for name, x in sorted(state.items()) if isinstance(x, Tensor)}
    numbers = {name: x for name, x in sorted(state.items()) if not isinstance(x, Tensor)}
    text = json.dumps({"format": "fedqssl-server-state", "numbers": numbers})
    return frame(safetensors.torch.save(tensors, metadata={"fedqssl": text}))


def state_from_bytes(data: bytes) -> ServerState:
    """Inverse of :func:`state_to_bytes`.

    Raises:
        ContainerError: these bytes are not a server's state.
    """
    blob = check_bytes(data)
    try:
        size = int.from_bytes(blob[:8], "little")
        about = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fedqssl"])
        if about["format"] != "fedqssl-server-state":
            raise ContainerError("these bytes are not a server's state")
        return {**safetensors.torch.load(blob), **about["numbers"]}
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise ContainerError(f"the server's state cannot be read: {error}") from error


def part_of(state: ServerState, prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = f"{prefix}/"
    return {n.removeprefix(start): x for n, x in state.items() if n.startswith(start) and isinstance(x, Tensor)}


def with_part(state: ServerState, prefix: str, part: dict[str, Tensor]) -> ServerState:
    """The state with the tensors under a prefix replaced."""
    start = f"{prefix}/"
    rest = {name: x for name, x in state.items() if not name.startswith(start)}
    return {**rest, **{start + name: x for name, x in part.items()}}


def equal(a: ServerState, b: ServerState) -> bool:
    """Whether two states are the same, bit for bit."""
    if a.keys() != b.keys():
        return False
    return all(torch.equal(x, b[n]) if isinstance(x, Tensor) else x == b[n] for n, x in a.items())  # type: ignore[arg-type]


__all__ = ["ServerState", "equal", "part_of", "state_from_bytes", "state_to_bytes", "with_part"]
