"""Operations and their places in memory as C source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from fedqssl.device.c_export.arena import Plan, padded
from fedqssl.device.c_export.operations import Average, Convolution, Map, Maximum, Network, Operation, Stretch

COLUMNS = 116
OTHER_CODE = {"stretch.c": Stretch, "average.c": Average, "maximum.c": Maximum}
"""Templates that are written where a network needs them."""
PER_LINE = 24
"""Entries of a table in one line of C."""


@cache
def template(name: str) -> str:
    """The text of a file in ``templates``."""
    return files("fedqssl.device.c_export").joinpath("templates", name).read_text(encoding="utf-8")


def filled(text: str, **values: object) -> str:
    """A template with ``@NAME@`` replaced; every name must be there, and none may be left."""
    for name, value in values.items():
        mark = f"@{name}@"
        if mark not in text:
            raise KeyError(f"the template has no {mark}")
        text = text.replace(mark, str(value))
    return text


def packed_rows(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Rows of codes (n, k) as rows of bytes, in the planes that ``unpack`` in ``model.c`` describes."""
    rows = np.pad(codes, ((0, 0), (0, padded(codes.shape[1]) - codes.shape[1])))
    planes, low = [], 0
    for width in (8, 4, 2, 1):
        if bits & width:
            parts = (rows >> low & (2**width - 1)).reshape(len(rows), 8 // width, -1)  # weights j, j + n, j + 2n
            planes.append(sum(parts[:, i] << (width * i) for i in range(8 // width)))
            low += width
    return np.concatenate(planes, axis=1).astype(np.uint8)


def string(text: str) -> str:
    """A C string literal of any text: UTF-8, with everything that C could read otherwise as octal numbers."""
    plain = b" !#$%&'()*+,-./0123456789:;<=>@[]^_`{|}~" + bytes(range(65, 91)) + bytes(range(97, 123))
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


@dataclass(frozen=True)
class Table:
    """A constant array: its C type, its name, and its entries as C writes them."""

    kind: str
    name: str
    entries: tuple[str, ...]

    def __str__(self) -> str:
        lines = (", ".join(self.entries[i : i + PER_LINE]) for i in range(0, len(self.entries), PER_LINE))
        return f"static const {self.kind} {self.name}[{len(self.entries)}] = {{\n" + ",\n".join(lines) + "};\n"


class Tables:
    """Collects constants, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.found: list[Table | str] = []
        self.nbytes = 0

    def add(self, kind: str, name: str, values: Iterable[int], width: int) -> str:
        """An array of integers of so many bytes; returns its name."""
        entries = tuple(_integer(int(v), width) for v in values)
        self.found.append(Table(kind, name, entries))
        self.nbytes += len(entries) * width
        return name

    def floats(self, name: str, values: NDArray[np.float32]) -> str:
        """An array of floats; returns its name."""
        self.found.append(Table("float", name, tuple(_float(float(v)) for v in values)))
        self.nbytes += 4 * len(values)
        return name

    def struct(self, kind: str, name: str, nbytes: int, **fields: object) -> None:
        """A struct with these fields."""
        inside = ", ".join(f".{key} = {value}" for key, value in fields.items())
        lines = "\n    ".join(wrap(inside, COLUMNS - 4))
        self.found.append(f"static const {kind} {name} = {{\n    {lines}}};\n")
        self.nbytes += nbytes


def _integer(value: int, width: int) -> str:
    if width < 8:
        return str(value)
    return f"INT64_C({value})"


def _float(value: float) -> str:
    """A float32 in C99's hexadecimal form, which loses nothing."""
    return f"{float(np.float32(value)).hex()}F"


LAYER_BYTES = 88
POOL_BYTES = 72
"""Of the structs ``Layer`` and ``Pool`` on a processor with pointers of 32 bits."""


def _layer(tables: Tables, at: int, operation: Convolution, plan: Plan) -> None:
    rows = packed_rows(operation.weights.reshape(len(operation.weights), -1), operation.bits)
    source, target, rescale = operation.source, operation.target, operation.rescale
    tables.struct(
        "Layer",
        f"layer_{at}",
        LAYER_BYTES,
        weights=tables.add("uint8_t", f"weights_{at}", rows.ravel(), 1),
        multipliers=tables.add("int32_t", f"multipliers_{at}", rescale.multiplier, 4),
        offsets=tables.add("int64_t", f"offsets_{at}", rescale.offset, 8),
        residual=_integer(operation.residual_multiplier, 8),
        **{f"in_{side}": getattr(source, side) for side in ("height", "width", "channels")},
        **{f"out_{side}": getattr(target, side) for side in ("height", "width", "channels")},
        **_sides("kernel", operation.weights.shape[1:3]),
        **_sides("stride", operation.stride),
        **_sides("pad", operation.padding),
        patch=padded(operation.taps),
        patches=plan.patches[operation],
        shift=rescale.shift,
        top=operation.top,
    )


def _pool(tables: Tables, at: int, operation: Average | Maximum) -> None:
    padding = operation.padding if isinstance(operation, Maximum) else (0, 0)
    source, target = operation.source, operation.target
    sides = zip((source.height, source.width), operation.window, operation.stride, padding, strict=True)
    out = [(size + 2 * pad - window) // stride + 1 for size, window, stride, pad in sides]
    numbers: dict[str, object] = {}
    if isinstance(operation, Average):
        parts = {
            "area": operation.area,
            "divisor": operation.divisor,
            "low": operation.low,
            "inverse": operation.inverse,
        }
        values = tables.floats(f"values_{at}", operation.values)
        numbers = {"values": values, **{name: _float(part) for name, part in parts.items()}}
        numbers |= {"group": operation.group, "top": operation.top}
    tables.struct(
        "Pool",
        f"pool_{at}",
        POOL_BYTES,
        **numbers,
        **_sides("in", (source.height, source.width)),
        channels=target.channels if isinstance(operation, Maximum) else source.channels,
        **_sides("out", out),
        **_sides("window", operation.window),
        **_sides("stride", operation.stride),
        **_sides("pad", padding),
    )


def _sides(name: str, values: Iterable[int]) -> dict[str, int]:
    height, width = values
    return {f"{name}_height": height, f"{name}_width": width}


def _place(m: Map | None, kind: str, plan: Plan, at: int = 0) -> str:
    if m is None or m.kind != kind:
        return "NULL"
    start = plan.places[m] + at
    array = "activations" if kind == "codes" else "wide"
    return f"{array} + {start}" if start else array


def _call(at: int, operation: Operation, plan: Plan) -> list[str]:
    """The lines that carry out one operation."""
    source = "image" if operation.source.kind == "image" else _place(operation.source, "codes", plan)
    lines = [f"    /* {_comment(operation.name)} */"]
    if isinstance(operation, Stretch):
        numbers = f"{operation.source.size}, {operation.spread}, {operation.least}"
        return [*lines, f"    stretch({source}, {numbers}, {_place(operation.target, 'codes', plan)});"]
    if not isinstance(operation, Convolution):
        verb = "average" if isinstance(operation, Average) else "maximum"
        place = _place(operation.target, "codes", plan, operation.at if isinstance(operation, Average) else 0)
        return [*lines, f"    {verb}(&pool_{at}, {source}, {place});"]
    target, residual = operation.target, operation.residual
    added = "image" if residual is not None and residual.kind == "image" else _place(residual, "codes", plan)
    parts = _place(target, "codes", plan), _place(target, "wide", plan), added, _place(residual, "wide", plan)
    return [*lines, f"    run_layer(&layer_{at}, {source}, &(Target){{{', '.join(parts)}}});"]


def _comment(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in text)


@dataclass(frozen=True)
class Source:
    """``model.c`` and the bytes of its constants, names of classes not included."""

    text: str
    table_bytes: int


def model_source(network: Network, plan: Plan, class_names: Iterable[str], version: str) -> Source:
    """``model.c``."""
    tables, calls = Tables(), []
    for at, operation in enumerate(network.operations):
        if isinstance(operation, Convolution):
            _layer(tables, at, operation, plan)
        elif not isinstance(operation, Stretch):
            _pool(tables, at, operation)
        calls += _call(at, operation, plan)
    names = "".join(f"    {string(name)},\n" for name in class_names)
    tables.found.append(f"const char *const model_class_names[MODEL_CLASSES] = {{\n{names}}};\n")
    kinds = {type(operation) for operation in network.operations}
    text = filled(
        template("model.c"),
        VERSION=version,
        TABLES="\n".join(map(str, tables.found)),
        ACTIVATION_BYTES=plan.codes,
        WIDE_ARENA=f"static int32_t wide[{plan.wide}];        /* scores, and sums that are added later */",
        SCRATCH_COUNT=plan.scratch,
        OTHER_CODE="".join(template(name) for name, kind in OTHER_CODE.items() if kind in kinds),
        CALLS="\n".join(calls),
        SCORES=_scores(network, plan),
    )
    if not kinds & {Average, Maximum}:
        text = _without_pool(text)
    return Source(text, tables.nbytes)


def _scores(network: Network, plan: Plan) -> str:
    start = plan.places[network.scores]
    return f"(wide + {start})" if start else "wide"


def _without_pool(text: str) -> str:
    """The text without the struct ``Pool``, which nothing uses."""
    start = text.index("/* An average or a maximum")
    end = text.index("} Pool;") + len("} Pool;\n\n")
    return text[:start] + text[end:]


__all__ = ["filled", "model_source", "packed_rows", "string", "template"]
