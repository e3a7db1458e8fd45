"""Bytes of a model on the wire, read from a real buffer."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from torch import nn

from fedqssl.lowbit.container import check_bytes, to_bytes
from fedqssl.lowbit.policy import Entry, state_of


@dataclass(frozen=True)
class Wire:
    """A model's container by parts.

    Args:
        packed: the weights: packed codes, or floats at full precision.
        floats: scales, batch norm, biases and ranges, as 16- or 32-bit floats.
        frame: header, names, checksum.
        most: its length if every float needed 32 bits; batch-norm tensors travel in 16 bits where that keeps 3 digits.
    """

    packed: int
    floats: int
    frame: int
    most: int

    @property
    def total(self) -> int:
        """The buffer's length."""
        return self.packed + self.floats + self.frame


def wire(model: nn.Module) -> Wire:
    """Pack a model from ``to_lowbit`` and take the buffer apart."""
    data = to_bytes(model)
    blob = check_bytes(data)
    length = struct.unpack_from("<Q", blob)[0]
    header = json.loads(blob[8 : 8 + length])
    weights = {f"{e.name}.codes" if e.weight is not None else e.name for e in _quantized(model)}
    sizes = {n: e["data_offsets"][1] - e["data_offsets"][0] for n, e in header.items() if n != "__metadata__"}
    packed = sum(size for name, size in sizes.items() if name in weights)
    floats = sum(sizes.values()) - packed
    halves = sum(sizes[n] for n, e in header.items() if n != "__metadata__" and e["dtype"] == "F16")
    return Wire(packed, floats, len(data) - packed - floats, len(data) + halves)


def _quantized(model: nn.Module) -> list[Entry]:
    return [entry for entry in state_of(model).values() if entry.role == "quantized"]


__all__ = ["Wire", "wire"]
