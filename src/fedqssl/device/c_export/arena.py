"""Where the maps of a network lie in memory: maps that are needed at the same time lie apart, all others may share.

Maps are placed in the order of their sizes, the largest first, each at the lowest place where nothing else lies that is
alive at the same time. A convolution may write over its residual, entry by entry, if nobody reads that afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedqssl.device.c_export.operations import Convolution, Map, Network, Operation, sources

PATCH_MULTIPLE = 16
"""Patches are filled up with zeros to a multiple of this, so that loops over them have no rest."""
SCRATCH_BYTES = 24 << 10
"""For patches and weights of a layer, unless one patch already takes more."""
CHANNELS_AT_ONCE = 2
MOST_PATCHES = 64
SUMS_BYTES = 4 * CHANNELS_AT_ONCE * MOST_PATCHES
"""Sums of the patches, whatever the network."""
ENTRY = {"codes": 1, "wide": 4}
INT16 = 2


class ArenaError(ValueError):
    """The network needs more memory than is allowed."""


@dataclass(frozen=True)
class Span:
    """A map in memory: its length in entries, and the first and the last operation that need it."""

    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        """Whether both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, eq=False)
class Plan:
    """Places of all maps, by map, in entries from the start of its array; and the lengths of the three arrays.

    ``patches`` is the number of output pixels that a convolution works on at a time.
    """

    places: Mapping[Map, int]
    codes: int
    wide: int
    scratch: int
    patches: Mapping[Convolution, int]

    @property
    def nbytes(self) -> int:
        """Static memory in bytes."""
        return self.codes * ENTRY["codes"] + self.wide * ENTRY["wide"] + self.scratch * INT16 + SUMS_BYTES


def placed(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The start of every span, and the length of the array that holds them all."""
    order = sorted(range(len(spans)), key=lambda i: (-spans[i].size, spans[i].first))
    starts: dict[int, int] = {}
    for i in order:
        taken = sorted((starts[j], starts[j] + spans[j].size) for j in starts if spans[j].meets(spans[i]))
        start = 0
        for begin, end in taken:
            if start + spans[i].size <= begin:
                break
            start = max(start, end)
        starts[i] = start
    return [starts[i] for i in range(len(spans))], max((starts[i] + spans[i].size for i in starts), default=0)


def _spans(operations: Sequence[Operation], outputs: Sequence[Map]) -> dict[Map, Span]:
    found: dict[Map, Span] = {}
    for i, operation in enumerate(operations):
        for m in (operation.target, *sources(operation)):
            if m.kind != "image":
                found[m] = Span(m.size, found[m].first if m in found else i, i)
    for m in outputs:
        found[m] = replace(found[m], last=len(operations))
    return found


def _overwritten(operations: Sequence[Operation], spans: Mapping[Map, Span]) -> dict[Map, Map]:
    """Targets that take the place of their residual, with the first map of that place."""
    found: dict[Map, Map] = {}
    for i, operation in enumerate(operations):
        old = operation.residual if isinstance(operation, Convolution) else None
        if old is None or old is operation.source or old.kind != operation.target.kind or spans[old].last > i:
            continue  # a convolution reads neighbours of what it writes, so it must not write over its own source
        found[operation.target] = found.get(old, old)
    return found


def _merged(spans: Mapping[Map, Span], overwritten: Mapping[Map, Map]) -> dict[Map, Span]:
    """The spans of places: of a map with all those that take its place."""
    found = {m: span for m, span in spans.items() if m not in overwritten}
    for m, first in overwritten.items():
        found[first] = replace(found[first], last=max(found[first].last, spans[m].last))
    return found


def padded(taps: int) -> int:
    """Length of a patch in memory."""
    return -(-taps // PATCH_MULTIPLE) * PATCH_MULTIPLE


def _patches(operation: Convolution, entries: int) -> int:
    """Output pixels at a time, in so many entries of scratch: an even number, or all of them; at least one."""
    pixels = operation.target.height * operation.target.width
    fit = entries // padded(operation.taps) - CHANNELS_AT_ONCE
    most = min(fit, MOST_PATCHES)
    return pixels if most >= pixels else max(most // 2 * 2, 1)


def plan(network: Network, max_ram: int | None = None, reuse: bool = True) -> Plan:
    """Places for all maps, and as much scratch memory as is useful.

    Args:
        network: the operations.
        max_ram: bytes that everything together may take.
        reuse: False gives every map a place of its own, so that all can be looked at afterwards.

    Raises:
        ArenaError: more than ``max_ram`` bytes are needed; the message says how many.
    """
    spans = _spans(network.operations, [network.scores])
    if not reuse:
        spans = {m: replace(span, first=0, last=len(network.operations)) for m, span in spans.items()}
    overwritten = _overwritten(network.operations, spans) if reuse else {}
    spans = _merged(spans, overwritten)
    places: dict[Map, int] = {}
    lengths = {"codes": 0, "wide": 0}
    for kind in lengths:
        of_kind = [m for m in spans if m.kind == kind]
        starts, lengths[kind] = placed([spans[m] for m in of_kind])
        places |= dict(zip(of_kind, starts, strict=True))
    places |= {m: places[first] for m, first in overwritten.items()}
    convolutions = [o for o in network.operations if isinstance(o, Convolution)]
    maps = sum(lengths[kind] * ENTRY[kind] for kind in lengths)
    least = max(padded(o.taps) * (1 + CHANNELS_AT_ONCE) for o in convolutions)
    left = SCRATCH_BYTES if max_ram is None else min(SCRATCH_BYTES, max_ram - maps - SUMS_BYTES)
    entries = max(left // INT16, least)
    patches = {o: _patches(o, entries) for o in convolutions}
    scratch = max(padded(o.taps) * (patches[o] + CHANNELS_AT_ONCE) for o in convolutions)
    made = Plan(places, lengths["codes"], lengths["wide"], scratch, patches)
    if max_ram is not None and made.nbytes > max_ram:
        raise ArenaError(f"the model needs {made.nbytes:,} bytes of RAM, but --max-ram allows {max_ram:,}")
    return made


__all__ = ["ArenaError", "Plan", "Span", "padded", "placed", "plan"]
