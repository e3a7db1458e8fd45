"""A device table: the ledger's costs as seconds, joules and memory on given devices.

.. code-block:: toml

    [default]                      # every client
    downlink = "20 Mbit/s"
    [classes.sensor]               # the clients of these bits, or listed by name
    bits = [4]
    memory = "64 MiB"
    uplink = "1 Mbit/s"
    operations_per_second = "50 G"
    energy_per_bit_operation = "2 pJ"
    [clients.client-09]            # one client; tables further down win, key by key
    uplink = "250 kbit/s"
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedqssl.config.keys import nearest
from fedqssl.config.load import read_toml
from fedqssl.cost.ledger import ClientCost, Ledger


@dataclass(frozen=True)
class Device:
    """What is known about a device; None means unknown, and the limit is then ignored.

    Args:
        memory: bytes.
        uplink: bits per second from the client to the server.
        downlink: bits per second to the client.
        operations_per_second: bit operations.
        energy_per_bit_operation: joules.
        power: watts while it trains, if the energy of an operation is not known.
    """

    memory: float | None = None
    uplink: float | None = None
    downlink: float | None = None
    operations_per_second: float | None = None
    energy_per_bit_operation: float | None = None
    power: float | None = None


@dataclass(frozen=True)
class DeviceRound:
    """One client's round on its device: seconds (0 if unknown), joules, and whether memory suffices."""

    name: str
    device: Device
    download: float
    compute: float
    upload: float
    energy: float | None
    needs: int
    fits: bool | None

    @property
    def seconds(self) -> float:
        """Download, local training and upload, one after the other."""
        return self.download + self.compute + self.upload

    @property
    def known(self) -> bool:
        """Whether any rate is known that takes time."""
        d = self.device
        return any(x is not None for x in (d.uplink, d.downlink, d.operations_per_second))


KEYS = tuple(f.name for f in fields(Device))
_SELECTORS = ("bits", "clients")
_TABLES = ("default", "classes", "clients")
_PREFIXES = {"": 1.0, "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3}
_PREFIXES |= {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_LINK = {"bit/s": 1, "b/s": 1, "bps": 1, "B/s": 8}
_UNITS: dict[str, tuple[dict[str, int], str]] = {
    "memory": ({"": 1, "B": 1}, '"64 MiB", or a number of bytes'),
    "uplink": (_LINK, '"5 Mbit/s", or a number of bits per second'),
    "downlink": (_LINK, '"20 Mbit/s", or a number of bits per second'),
    "operations_per_second": ({"": 1, "op/s": 1}, '"50 G", or a number of bit operations'),
    "energy_per_bit_operation": ({"J": 1}, '"2 pJ", or a number of joules'),
    "power": ({"W": 1}, '"2.5 W", or a number of watts'),
}
"""By key: units with their factors, and what to write."""


def quantity(key: str, value: object, where: str) -> float:
    """A positive number, or a string of number, prefix and unit, in the base unit of ``key``.

    Raises:
        ValueError: the message says what to write.
    """
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str):
        found = re.fullmatch(r"\s*([-+]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*", value)
        scale = _scale(key, found.group(2)) if found else None
        if found and scale is not None:
            number = float(found.group(1)) * scale
    if number is None:
        raise ValueError(f"{where}: {key} takes {_UNITS[key][1]}; not {value!r}")
    if not 0 < number < math.inf:
        raise ValueError(f"{where}: {key} must be positive, not {value!r}; leave it out if it is unknown")
    return number


def _scale(key: str, text: str) -> float | None:
    """``Mbit/s`` -> 1e6; None if it is not a unit of ``key``, with or without a prefix."""
    for unit, factor in _UNITS[key][0].items():
        if text.endswith(unit) and (prefix := text.removesuffix(unit)) in _PREFIXES:
            return _PREFIXES[prefix] * factor
    return None


def _values(table: Mapping[str, Any], where: str, besides: Sequence[str] = ()) -> dict[str, float]:
    """The device keys of a table; ``besides`` names the other allowed keys."""
    found = {}
    for key, value in table.items():
        if key in besides:
            continue
        if key not in KEYS:
            known = (*KEYS, *besides)
            raise ValueError(f"{where}: unknown key {key!r}{nearest(key, known)} (keys: {', '.join(known)})")
        found[key] = quantity(key, value, where)
    return found


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is a table of keys like memory and uplink, not {value!r}")
    return value


def _tables(value: object, where: str) -> dict[str, dict[str, Any]]:
    """Tables by name: ``[where.one]``, ``[where.other]``."""
    return {name: _table(inner, f"{where}.{name}") for name, inner in _table(value, where).items()}


def _list(table: Mapping[str, Any], key: str, kind: type, where: str) -> tuple[Any, ...]:
    value = table.get(key, [])
    values = value if isinstance(value, list) else [value]
    if not all(type(v) is kind for v in values):
        what = 'names like ["client-00"]' if kind is str else "bitwidths like [4, 6]"
        raise ValueError(f"{where}: {key} lists {what}; not {value!r}")
    return tuple(values)


@dataclass(frozen=True)
class DeviceClass:
    """Devices of one kind: which clients have one, and what is known about it."""

    name: str
    bits: tuple[int, ...]
    clients: tuple[str, ...]
    values: Mapping[str, float]


@dataclass(frozen=True)
class Devices:
    """A device table; see the module's example."""

    source: str
    default: Mapping[str, float]
    classes: tuple[DeviceClass, ...]
    clients: Mapping[str, Mapping[str, float]]

    def of(self, name: str, bits: int) -> Device:
        """The device of a client: default, then its class, then its own table.

        Raises:
            ValueError: if two classes claim it; a class that names it takes precedence over one that lists its bits.
        """
        named = [c for c in self.classes if name in c.clients]
        claims = named or [c for c in self.classes if bits in c.bits]
        if len(claims) > 1:
            both = " and ".join(f"classes.{c.name}" for c in claims)
            raise ValueError(f"{self.source}: {name} ({bits} bits) is in {both}; leave it in one")
        values = {**self.default, **(claims[0].values if claims else {}), **self.clients.get(name, {})}
        return replace(Device(), **values)

    def check(self, known: Sequence[str]) -> None:
        """Raise an error for a table that names clients the run does not have."""
        named = {f"classes.{c.name}": c.clients for c in self.classes} | {"clients": tuple(self.clients)}
        for where, names in named.items():
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"{self.source}: {where} names {name!r}, but the run has no such client{nearest(name, known)} "
                        f"(clients: {known[0]} to {known[-1]})"
                    )

    def rounds(self, ledger: Ledger) -> dict[str, DeviceRound]:
        """Every client's round on its device, by name."""
        self.check(list(ledger.clients))
        return {name: device_round(client, self.of(name, client.bits)) for name, client in ledger.clients.items()}


def read_devices(path: Path) -> Devices:
    """Read a device table.

    Raises:
        ValueError: one line that names the file, the table and the key, and says what to write.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; --devices takes a TOML file (docs/cost.md has an example)")
    data = read_toml(path)
    for name in data:
        if name not in _TABLES:
            raise ValueError(
                f"{path}: unknown table {name!r}{nearest(name, _TABLES)} (tables: default, classes.NAME, clients.NAME)"
            )
    default = _values(_table(data.get("default", {}), f"{path}: default"), f"{path}: default")
    classes = []
    for name, table in _tables(data.get("classes", {}), f"{path}: classes").items():
        where = f"{path}: classes.{name}"
        bits, names = _list(table, "bits", int, where), _list(table, "clients", str, where)
        if not bits and not names:
            raise ValueError(f'{where} has no clients; add bits = [4], or clients = ["client-00"]')
        classes.append(DeviceClass(name, bits, names, _values(table, where, _SELECTORS)))
    own = _tables(data.get("clients", {}), f"{path}: clients")
    clients = {name: _values(table, f"{path}: clients.{name}") for name, table in own.items()}
    return Devices(str(path), default, tuple(classes), clients)


def device_round(client: ClientCost, device: Device) -> DeviceRound:
    """``8 bytes_down / downlink + operations / operations_per_second + 8 bytes_up / uplink``.

    Energy is per bit operation, or power times the seconds of training.
    """

    def over(amount: float, rate: float | None) -> float:
        return amount / rate if rate is not None else 0.0

    operations, joules = client.operations.total, device.energy_per_bit_operation
    compute = over(operations, device.operations_per_second)
    energy = None if joules is None else operations * joules
    if energy is None and device.power is not None and device.operations_per_second is not None:
        energy = device.power * compute
    needs = client.memory.peak
    return DeviceRound(
        client.name,
        device,
        over(8 * client.bytes_down, device.downlink),
        compute,
        over(8 * client.bytes_up, device.uplink),
        energy,
        needs,
        None if device.memory is None else needs <= device.memory,
    )


def straggler(rounds: Mapping[str, DeviceRound]) -> DeviceRound | None:
    """The client that a round waits for; None if nothing known takes time."""
    known = [r for r in rounds.values() if r.known and r.seconds > 0]
    return max(known, key=lambda r: r.seconds) if known else None


__all__ = ["Device", "DeviceRound", "Devices", "device_round", "quantity", "read_devices", "straggler"]
