"""How far a client's packed weights are from the aggregated float model, layer by layer.

Codes are read straight from the containers: no network is built, so this takes milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedqssl.files import read_json
from fedqssl.lowbit.container import check_bytes, read_header
from fedqssl.quant.compand import COMPANDERS, compand_quantize, compand_values, levels
from fedqssl.quant.packing import unpack
from fedqssl.reporting.data import RunData
from fedqssl.reporting.theme import FULL
from fedqssl.runs.folder import CLIENTS


@dataclass(frozen=True)
class LayerError:
    """``|q - w| / |w|`` of a layer: of the weights handed out, and of rounding the aggregated ones without fine-tuning."""

    layer: str
    handed_out: float
    rounding: float
    weights: int


@dataclass(frozen=True)
class LayerErrors:
    """By bitwidth, with the client whose model represents it."""

    round_number: int
    clients: Mapping[int, str]
    layers: Mapping[int, tuple[LayerError, ...]]


def _natural(name: str) -> list[tuple[int, str]]:
    """``layer.10`` after ``layer.9``; the heads last."""
    parts = [(int(p), "") if p.isdecimal() else (0, p) for p in re.split(r"(\d+)", name) if p]
    return [(int(name.startswith("heads")), ""), *parts]


def decode(data: bytes, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The float parameters that a container's codes stand for, by layer: ``c^-1(m l_k)``, or the levels (``literal``)."""
    header, tensors = read_header(data), safetensors.torch.load(check_bytes(data))
    bits, options = int(header["bits"]), json.loads(header["options"])
    found = {}
    for key, packed in tensors.items():
        name = key.removesuffix(".codes")
        if name == key or name not in shapes:
            continue
        if options["weights"] == "literal":
            table = levels(bits)
        else:
            table = compand_values(bits, float(tensors[f"{name}.scale"]), COMPANDERS[options["compander"]])
        found[name] = table[unpack(packed, bits, shapes[name]).to(torch.int64)].float()
    return found


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """``|found - wanted| / |wanted|``; infinity if ``wanted`` is zero and ``found`` is not."""
    size = float(wanted.double().norm())
    off = float((found.double() - wanted.double()).norm())
    return off / size if size else (float("inf") if off else 0.0)


def _compared(packed: bytes, whole: Mapping[str, Tensor]) -> tuple[LayerError, ...]:
    options = json.loads(read_header(packed)["options"])
    bits, compander = int(read_header(packed)["bits"]), COMPANDERS[options["compander"]]
    found = decode(packed, {name: tensor.shape for name, tensor in whole.items()})
    errors = []
    for name in sorted(found, key=_natural):
        wanted = whole[name].float()
        rounded = compand_quantize(wanted, bits, compander, domain="level").dequantize()
        handed_out, rounding = relative_error(found[name], wanted), relative_error(rounded, wanted)
        errors.append(LayerError(name.removesuffix(".weight"), handed_out, rounding, wanted.numel()))
    return tuple(errors)


def _read(folder: Path, run: RunData) -> LayerErrors | str:
    if not (folder / "aggregated.fqssl").is_file():
        return "This algorithm has no aggregated model, so there is nothing to compare the clients' weights with."
    whole = safetensors.torch.load(check_bytes((folder / "aggregated.fqssl").read_bytes()))
    state = read_json(folder / "state.json")
    groups = read_json(folder / CLIENTS) if state.get("groups") else ()
    models = {name: file for names, file in zip(groups, state.get("common", ()), strict=True) for name in names}
    models |= state["models"]
    clients: dict[int, str] = {}
    for name, bits in sorted(run.bits.items()):
        if bits != FULL and name in models:
            clients.setdefault(bits, name)
    if not clients:
        return "All clients are at full precision: nothing is quantized."
    layers = {b: _compared((folder / models[clients[b]]).read_bytes(), whole) for b in sorted(clients)}
    return LayerErrors(int(folder.name.removeprefix("round-")), clients, layers)


def layer_errors(run: RunData) -> LayerErrors | str:
    """From the newest checkpoint that can be read; a sentence if there is none."""
    why = "There is no checkpoint yet: the first round is not finished."
    for folder in sorted((run.path / "checkpoints").glob("round-?????"), reverse=True):
        try:
            return _read(folder, run)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
            why = f"The checkpoint {folder.name} cannot be read ({' '.join(str(error).split())})."  # perhaps just replaced
    return why


__all__ = ["LayerError", "LayerErrors", "decode", "layer_errors", "relative_error"]
